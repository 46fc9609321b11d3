// SPDX-License-Identifier: Apache-2.0
// The view of the OpenAPI document: all operations and schemas, filter, links, commands that a shell runs, failures, and a document that is hostile.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { join } from "node:path";
import { promisify } from "node:util";

import { audit, opened } from "./browser.mjs";
import { demo } from "./lamp.mjs";

const run = promisify(execFile);
const METHODS = ["get", "put", "post", "delete", "patch"];
const PATH = "/page/openapi.html";

/** Runs a command line as a person does who pastes it. */
async function pasted(line, env = {}) {
  const { stdout } = await run("bash", ["-c", line], { env: { ...process.env, ...env } });
  return JSON.parse(stdout);
}

const opens = (page, id) => page.evaluate((to) => { location.hash = to; }, id).then(() => page.waitForSelector(`[id="${id}"][open] > div`));
const commandOf = (page, id) => page.textContent(`#${id} [aria-label=Command]`);

/** Opens all folded parts, with what they contain, down to this depth; returns their number. */
async function unfold(page, depth) {
  for (let level = 0; level < depth; level++) {
    await page.evaluate(async () => {
      for (const node of document.querySelectorAll("#operations details:not([open])")) node.open = true;
      await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    });
  }
  return page.locator("#operations details[open]").count();
}

/** The words for the limits of a schema. */
const LIMITS = {
  default: "default", minimum: "at least", exclusiveMinimum: "above", maximum: "at most", minLength: "length at least", maxLength: "length at most",
  minItems: "items at least", maxProperties: "members at most", pattern: "pattern",
};
const plain = (text) => text.replaceAll("`", "").split("\n\n");

/** The texts with which each keyword of a schema is shown, and those of the schemas in it that have no `$ref`. */
const KEYWORDS = {
  $ref: (value) => [value.split("/").at(-1)],
  type: (value, schema) => (schema.format || schema.enum || "const" in schema ? [] : [value].flat().map((type) => (type === "array" && schema.items ? "list of " : type))),
  format: (value) => [{ binary: "bytes" }[value]],
  description: plain,
  enum: (value) => value.map((one) => JSON.stringify(one)),
  const: (value) => [JSON.stringify(value)],
  properties: (value) => Object.entries(value).flatMap(([name, schema]) => [`${name} `, ...textsOf(schema)]),
  required: (value, { properties = {} }) => (Object.keys(properties).some((name) => !value.includes(name)) ? ["may be absent"] : []),
  items: (value) => textsOf(value),
  oneOf: (value) => value.flatMap(textsOf),
  anyOf: (value) => value.flatMap(textsOf),
  propertyNames: (value) => ["names ", ...textsOf(value)],
  additionalProperties: (value) => (typeof value === "boolean" ? [value ? "other members" : "no other members"] : ["object of ", ...textsOf(value)]),
  ...Object.fromEntries(Object.entries(LIMITS).map(([name, word]) => [name, (value) => [`${word} ${JSON.stringify(value)}`]])),
};

function textsOf(schema) {
  return Object.entries(schema).flatMap(([keyword, value]) => {
    assert.ok(KEYWORDS[keyword], `the view does not know ${keyword}`);
    return KEYWORDS[keyword](value, schema);
  });
}

/** The headers in which the variables of commands are sent. */
const TOKENS = { controlToken: "Authorization: Bearer $TOKEN", metricsToken: "Authorization: Bearer $METRICS_TOKEN", agentToken: "Authorization: Bearer $KEY", agentKey: "x-api-key: $KEY" };
const exampleOf = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 1));

/** The texts of an operation: all that the document has of it, and its security schemes. */
function textsOfOperation(one, api) {
  const resolve = (value) => (value.$ref ? value.$ref.split("/").slice(1).reduce((found, name) => found[name], api) : value);
  const { securitySchemes } = api.components;
  const contents = ({ headers = {}, content = {} }) => [
    ...Object.entries(headers).map(([name, header]) => [name, resolve(header)]).flatMap(([name, { schema, description }]) => [`${name} ${schema.type}, header`, ...plain(description), ...textsOf(schema)]),
    ...Object.entries(content).flatMap(([type, { schema = {}, "x-item-schema": item, example, examples = {} }]) => [
      `${type} `, ...textsOf(schema), ...item ? textsOf(item) : [], ...example === undefined ? [] : [exampleOf(example)],
      ...Object.entries(examples).flatMap(([name, { value }]) => [`${name}\n`, exampleOf(value)]),
    ]),
  ];
  return [
    one.summary, ...plain(one.description ?? ""), one.externalDocs?.url ?? "",
    ...one.servers.flatMap(({ url, description }) => [`${url} ${description}`]),
    ...one.security?.length === 0 ? ["Token\nNone."] : (one.security ?? api.security).flatMap(Object.keys).map((name) => `${TOKENS[name]} ${plain(securitySchemes[name].description)}`),
    ...(one.parameters ?? []).map(resolve).flatMap((parameter) => [`${parameter.name} `, ...plain(parameter.description), ...textsOf(parameter.schema)]),
    ...contents(one.requestBody ?? {}),
    ...Object.entries(one.responses).flatMap(([status, reply]) => [`${status} ${plain(resolve(reply).description)[0]}`, ...contents(resolve(reply))]),
  ];
}

/** Everything that the document has is shown, except the variables of servers, and `x-` members that the prose lists too. */
async function isComplete(page, api) {
  const operations = Object.entries(api.paths).flatMap(([path, item]) => METHODS.filter((method) => item[method]).map((method) => ({ path, method, servers: item.servers ?? api.servers, ...item[method] })));
  const names = Object.keys(api.components.schemas);
  const ids = await page.evaluate(() => [...document.querySelectorAll(".entry")].map((node) => node.id));
  assert.deepEqual([...ids].sort(), [...operations.map((one) => one.operationId), ...names.map((name) => `schema-${name}`)].sort());
  assert.deepEqual(await page.evaluate(() => [...document.querySelectorAll("#index a")].map((node) => node.hash.slice(1))), ids);
  const parts = await unfold(page, 4);
  const shown = await page.evaluate(() => Object.fromEntries([...document.querySelectorAll(".entry")].map((node) => [node.id, node.innerText])));
  const hasAll = (id, texts) => {
    const missing = texts.filter((text) => !shown[id].includes(text));
    assert.deepEqual(missing, [], `${id} does not show these`);
  };
  for (const one of operations) {
    const text = shown[one.operationId];
    assert.ok(text.startsWith(`${one.method.toUpperCase()} ${one.path}`), text.slice(0, 80));
    hasAll(one.operationId, textsOfOperation(one, api));
  }
  for (const name of names) hasAll(`schema-${name}`, textsOf(api.components.schemas[name]));
  return [operations.length, names.length, parts];
}

/** A schema that contains itself, and texts that are markup, are shown as they are. */
async function isSafe(tap) {
  const markup = "<img src=x onerror=alert(1)><script>alert(2)</script>";
  const node = { type: "object", description: markup, properties: { children: { type: "array", items: { $ref: "#/components/schemas/Node" } }, [markup]: { type: "string" } } };
  const { page, context, faults } = await opened(tap.control, { at: PATH });
  await page.route("**/openapi.json", (route) => route.fulfill({ contentType: "application/json", body: JSON.stringify({
    openapi: "3.1.1", info: { version: markup, description: markup }, tags: [{ name: "Tag", description: markup }],
    paths: { "/x": { get: { operationId: "x", tags: ["Tag"], summary: markup, parameters: [{ name: "q", in: "query", schema: {}, example: "' $(exit 3) \"" }], responses: { 200: { description: markup, headers: { [markup]: { schema: {}, description: markup } }, content: { "application/json": { schema: { $ref: "#/components/schemas/Node" }, examples: { [markup]: { value: markup } } } } } } } } },
    components: { schemas: { Node: node } },
  }) }));
  await page.reload();
  await page.waitForSelector("#schema-Node");
  const counts = [];
  for (const depth of [1, 2, 3, 4]) counts.push(await unfold(page, 1) && depth && await page.locator("#schema-Node details").count());
  assert.ok(counts.every((count, at) => count === at + 1), `each level has one more part: ${counts}`);
  assert.equal(await page.evaluate(() => document.querySelectorAll("main img, main script, #where img").length), 0);
  assert.ok((await page.innerText("#operations")).includes(markup));
  // a shell takes quotes and commands in a value as text
  const { stdout } = await run("bash", ["-c", (await commandOf(page, "x")).replace("curl -s", "printf %s")]);
  assert.equal(stdout, `${tap.control}/x?q='%20%24(exit%203)%20%22`);
  assert.deepEqual(faults, []);
  await context.close();
}

/** The view says which request failed. Without the address of the data port it shows the default one, and tokens only after a 401. */
async function failsWell(tap) {
  const { page, context, faults } = await opened(tap.control, { at: PATH, expected: (text) => text.includes("Failed to load resource") });
  const reload = async (path, answer) => {
    await page.unrouteAll();
    await page.route(`**${path}`, answer);
    await page.reload();
  };
  const status = (code) => (route) => route.fulfill({ status: code, contentType: "application/json", body: "{}" });
  await reload("/openapi.json", status(503));
  await page.waitForFunction(() => document.getElementById("status").textContent === "The document cannot be shown: GET /openapi.json returned 503");
  for (const [answer, isDenied] of [[(route) => route.abort(), false], [status(503), false], [status(401), true]]) {
    await reload("/v1/data-port", answer);
    await page.waitForSelector("#schema-Session");
    for (const [id, key] of [["listSessions", "$TOKEN"], ["generate", "$KEY"]]) {
      await opens(page, id);
      assert.equal((await commandOf(page, id)).includes(key), isDenied, id);
      assert.equal((await page.innerText(`#${id}`)).includes("This is the default address"), id === "generate", id);
    }
  }
  assert.deepEqual(faults, []);
  await context.close();
}

/** A result that is opened leaves the filter as it is; a link opens its entry also if the address names it already. */
async function links(page) {
  const count = () => page.locator("#index a:visible").count();
  await page.fill("#filter", "teacher");
  const found = await count();
  const link = page.locator("#index a:visible").first();
  const id = (await link.getAttribute("href")).slice(1);
  const isOpen = (state) => page.waitForFunction(([name, wanted]) => globalThis.document.getElementById(name).open === wanted, [id, state]);
  await link.click();
  await isOpen(true);
  assert.equal(await page.inputValue("#filter"), "teacher");
  assert.equal(await count(), found);
  await page.click(`#${id} > summary`);
  await isOpen(false);
  await link.click();
  await isOpen(true);
  assert.equal(await page.evaluate(() => globalThis.document.activeElement.closest(".entry")?.id), id);
  await page.fill("#filter", "");
}

/** The result of Copy is announced, and on the screen with the button. */
async function copies(page, context) {
  const result = page.locator("#listSessions [role=status]");
  const says = async (words) => {
    await page.click("#listSessions button");
    await page.waitForFunction((text) => globalThis.document.querySelector("#listSessions [role=status]").textContent.includes(text), words);
    const { top, bottom, height } = await result.evaluate((node) => ({ ...node.getBoundingClientRect().toJSON(), height: innerHeight }));
    assert.ok(top >= 0 && bottom <= height, `${words}: at ${top} to ${bottom} of ${height}`);
  };
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  await says("Copied");
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), await commandOf(page, "listSessions"));
  await page.evaluate(() => { navigator.clipboard.writeText = () => Promise.reject(new Error("refused")); });
  await says("does not allow copying");
  assert.ok(await page.evaluate(() => getSelection().toString().startsWith("curl -s")));
}

export async function api() {
  const seen = [];
  // the view cannot know whether metrics need a token
  const metrics = ["--metrics-token", "m"];
  for (const [theme, isPhone, flags] of [["light", false, []], ["dark", true, ["--control-token", "secret"]]]) {
    const tap = await demo([...metrics, ...flags]);
    try {
      // the view asks for no token: without one, the address of the data port is the one in the document
      const { page, context, faults } = await opened(tap.control, { at: flags.length ? PATH : "/", theme, isPhone, viewport: { width: 1240, height: 800 }, expected: (text) => flags.length && text.includes("401") });
      if (!flags.length) await page.click("header a.button");
      await page.waitForSelector("#schema-Session");
      assert.equal(new URL(page.url()).pathname, PATH);
      const document = await page.evaluate(() => fetch("/openapi.json").then((answer) => answer.json()));
      const { reported } = await audit(page);
      assert.deepEqual(reported, [], reported.join("\n"));
      if (process.env.PICTURES) await page.screenshot({ path: join(process.env.PICTURES, `api-${theme}.png`) });

      // a link opens an operation, moves the focus to it, and stays in the address
      await opens(page, "listSessions");
      assert.equal(await page.evaluate(() => globalThis.document.activeElement.closest(".entry").id), "listSessions");
      assert.ok(await page.isVisible("#listSessions > div"));
      await page.keyboard.press("Enter");
      assert.equal(await page.getAttribute("#listSessions", "open"), null);
      await page.keyboard.press("Enter");
      if (flags.length) {
        assert.match(await commandOf(page, "listSessions"), /^curl -s '.*limit=2' -H "Authorization: Bearer \$TOKEN"$/);
      } else {
        await opens(page, "generate");
        const reply = await pasted(await commandOf(page, "generate"));
        assert.equal(reply.meta_info.output_token_entropy.length, 4);
      }
      const listed = await pasted(await commandOf(page, "listSessions"), { TOKEN: "secret" });
      assert.deepEqual(listed.sessions.map(({ session }) => session), flags.length ? [] : ["run-1"]);
      await opens(page, "livez");
      assert.ok(!(await commandOf(page, "livez")).includes("TOKEN"), "a probe needs no token");

      await opens(page, "metrics");
      assert.match((await run("bash", ["-c", await commandOf(page, "metrics")], { env: { ...process.env, METRICS_TOKEN: "m" } })).stdout, /^# HELP tokentap_/m);

      await opens(page, "listSessions");
      await copies(page, context);
      await links(page);

      await page.evaluate(() => globalThis.document.activeElement.blur());
      await page.keyboard.press("/");
      await page.keyboard.type("Teacher Scores");
      const visible = await page.evaluate(() => [...globalThis.document.querySelectorAll(".entry:not([hidden])")].map((node) => node.id));
      assert.ok(visible.includes("scoreByTeacher") && !visible.includes("livez") && visible.length < 20, visible.join());
      assert.equal(await page.textContent("#status"), `${visible.length} of ${await page.locator(".entry").count()}`);
      assert.equal(await page.locator("#index a:visible").count(), visible.length);
      await page.fill("#filter", "zzzz teacher");
      assert.equal(await page.locator("#api section:visible").count(), 0);
      // a link to an operation that the filter hides shows it
      await opens(page, "exportSamples");
      assert.equal(await page.inputValue("#filter"), "");
      if (process.env.PICTURES) await page.screenshot({ path: join(process.env.PICTURES, `api-operation-${theme}.png`) });

      const shown = await page.evaluate(() => globalThis.document.documentElement.dataset.theme);
      await page.click("#theme");
      assert.notEqual(await page.evaluate(() => globalThis.document.documentElement.dataset.theme), shown);
      seen.push(await isComplete(page, document));
      if (isPhone) assert.ok(await page.evaluate(() => globalThis.document.documentElement.scrollWidth <= innerWidth), "nothing is wider than the screen");
      const { reported: all } = await audit(page);
      assert.deepEqual(all, [], all.join("\n"));
      assert.deepEqual(faults, []);
      await context.close();
      if (!flags.length) {
        await isSafe(tap);
        await failsWell(tap);
      }
    } finally {
      await tap.stop();
    }
  }
  const [operations, schemas, parts] = seen[0];
  return `${operations} operations, ${schemas} schemas, ${parts} parts opened; commands run in a shell; links, copies, failures, a schema in itself, markup, axe with all open, wide and phone`;
}
