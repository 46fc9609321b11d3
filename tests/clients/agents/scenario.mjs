// SPDX-License-Identifier: Apache-2.0
// The conversation of scenario.py.
import assert from "node:assert/strict";

export const base = process.env.CLIENT_BASE_URL;
// the SDKs of Anthropic append /v1 themselves
export const root = base.replace(/\/v1$/, "");
export const [key, model, system] = ["none", "scripted", "Be brief."];
export const users = ["How is the weather in Oslo, and elsewhere?", "And 7 C in Fahrenheit?", "Thank you."];
const answers = ["Both are wet:  🌧 and ❄.\n\n- Bergen\n- Tromsø", "That is 44.6 F.", "You are welcome."];

export const weather = ({ city }) => ({ Oslo: "rain, 7 C", Bergen: "fog, 9 C", Tromsø: "snow, -3 C" })[city];
export const fahrenheit = ({ celsius }) => `${((celsius * 9) / 5 + 32).toFixed(1)} F`;

export const check = (turn, answer) => assert.equal((answer ?? "").trim(), answers[turn], `turn ${turn}`);
