// SPDX-License-Identifier: Apache-2.0
// The view of /openapi.json: operations by tag, their parameters, bodies and replies, and a command for each.

import { amount, element, part } from "./element.js";
import { Schemas, box, folded, kind, list, paragraphs, prose } from "./schema.js";
import { next as nextTheme, show as showTheme } from "./theme.js";

const METHODS = ["get", "put", "post", "delete", "patch"];
/** The variables from which commands read tokens, by the names of security schemes. */
const VARIABLES = { controlToken: "TOKEN", metricsToken: "METRICS_TOKEN", agentToken: "KEY", agentKey: "KEY" };
const announce = (text) => { part("status").textContent = text; };
/** Operations and schemas: the words that a filter finds, the entry, and its link. */
const entries = [];
let schemas;

/** A text as one word of a shell. */
const quoted = (text) => (/^[\w./:=@%-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
const written = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/** The headers in which an operation takes a token, each with its security scheme. */
function tokens(operation) {
  const names = (operation.security ?? schemas.document.security ?? []).flatMap(Object.keys);
  return names.map((name) => {
    const { name: key, description } = schemas.document.components.securitySchemes[name];
    return { name, header: `${key ? `${key}:` : "Authorization: Bearer"} $${VARIABLES[name]}`, description };
  });
}

/** The command that sends the example of an operation. `unneeded` has the schemes whose tokens this server does not need. */
function command({ method, path, parameters, operation }, { base, unneeded }) {
  const [query, headers] = [[], []];
  let target = path;
  for (const { name, in: place, example } of parameters) {
    const value = example === undefined ? null : written(example);
    if (place === "path") target = target.replace(`{${name}}`, encodeURIComponent(value ?? name.toUpperCase()));
    else if (value !== null) (place === "query" ? query : headers).push(place === "query" ? `${name}=${encodeURIComponent(value)}` : quoted(`${name}: ${value}`));
  }
  const body = operation.requestBody?.content["application/json"]?.example;
  const words = ["curl -s"];
  if (method !== (body === undefined ? "get" : "post")) words.push("-X", method.toUpperCase());
  words.push(quoted(base + target + (query.length ? `?${query.join("&")}` : "")));
  const [token] = tokens(operation);
  // a shell replaces variables in double quotes
  if (token && !unneeded.includes(token.name)) headers.unshift(`"${token.header}"`);
  if (body !== undefined) headers.push("'content-type: application/json'");
  words.push(...headers.map((header) => `-H ${header}`));
  if (body !== undefined) words.push("-d", quoted(JSON.stringify(body)));
  return words.join(" ");
}

/** Copies the text of an element, or selects it where the browser does not let the page copy. `result` says which. */
async function copy(node, result) {
  try {
    await navigator.clipboard.writeText(node.textContent);
    result.textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(node);
    result.textContent = "The browser does not allow copying. The command is selected.";
  }
}

/** An entry and its link in the index. `title` makes the children of both. */
function entry(id, title, sub, words, make) {
  const link = element("a", { href: `#${id}`, onclick: again }, title());
  const node = folded({ class: "entry", id }, [element("h3", {}, title()), element("span", { class: "sub" }, prose(sub))], make);
  node.firstChild.addEventListener("click", () => node.open || history.replaceState(null, "", `#${id}`));
  entries.push({ words: [id, sub, ...words].join(" ").toLowerCase(), node, link });
  return [node, link];
}

function group(title, description, made) {
  ["operations", "index"].forEach((place, at) => part(place).append(element("section", {},
    element("h2", {}, title), at ? [] : paragraphs(description), made.map((one) => one[at]))));
}

/** The examples of a media type, folded. */
function examplesOf({ example, examples = {} }) {
  const all = [...example === undefined ? [] : [["", example]], ...Object.entries(examples).map(([name, { value }]) => [name, value])];
  return all.length ? [folded({}, amount(all.length, "example"), () => all.map(([name, value]) =>
    [element("code", {}, name), box(typeof value === "string" ? value : JSON.stringify(value, null, 1), `Example ${name}`)]))] : [];
}

/** The headers of a body or a reply, and its media types with their examples. */
function contents({ headers = {}, content = {} }) {
  return list([
    ...Object.entries(headers).map(([name, header]) => {
      const { schema, description } = schemas.resolve(header);
      return schemas.row(name, schema, ["header"], description);
    }),
    ...Object.entries(content).map(([type, media]) => {
      const { schema = {}, "x-item-schema": item } = media;
      const row = schemas.row(type, schema, item ? [`each ${kind(item)}`] : []);
      row.append(...item ? schemas.inner(item) : [], ...examplesOf(media));
      return row;
    }),
  ]);
}

/** All of an operation that its heading does not say. */
function details(one, port) {
  const { operation, parameters, servers = schemas.document.servers ?? [] } = one;
  const { description, externalDocs, requestBody, responses } = operation;
  const line = box(command(one, port), "Command");
  const result = element("span", { class: "sub", role: "status" });
  const section = (title, ...children) => [element("h4", {}, title), children];
  const named = (name, text, ...children) => element("li", {}, element("code", {}, name), " ", prose(text), children);
  return [
    paragraphs(description),
    externalDocs ? element("p", {}, element("a", { href: externalDocs.url }, externalDocs.url)) : [],
    section("Command", line, element("button", { type: "button", onclick: () => copy(line, result) }, "Copy"), " ", result, paragraphs(port.note)),
    section("Servers", list(servers.map(({ url, description }) => named(url, description)))),
    section("Token", list(tokens(operation).map((token) => named(token.header, token.description)), "None.")),
    parameters.length ? section("Parameters", list(parameters.map(({ name, in: place, required, schema, description }) =>
      schemas.row(name, schema, [place, ...required ? ["required"] : []], description)))) : [],
    requestBody ? section("Body", contents(requestBody)) : [],
    section("Replies", list(Object.entries(responses).map(([status, reply]) => {
      const found = schemas.resolve(reply);
      return named(status, found.description, contents(found));
    }))),
  ];
}

/** Opens what the address names. */
function follow() {
  const node = part(location.hash.slice(1));
  if (!node?.matches(".entry")) return;
  if (node.hidden) filter(part("filter").value = "");
  node.open = true;
  node.scrollIntoView();
  node.firstChild.focus({ preventScroll: true });
}

/** Opens the entry of a link that the address names already: then no event reports a change of it. */
function again(event) {
  if (event.currentTarget.hash !== location.hash || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  follow();
}

/** Shows the entries that have all words. */
function filter(text) {
  const wanted = text.toLowerCase().split(/\s+/);
  for (const { words, node, link } of entries) node.hidden = link.hidden = !wanted.every((word) => words.includes(word));
  for (const section of document.querySelectorAll("#api section")) section.hidden = ![...section.querySelectorAll(".entry, a")].some((one) => !one.hidden);
  announce(text ? `${entries.filter(({ node }) => !node.hidden).length} of ${entries.length}` : "");
}

/** Shows the document. `port` is the reply about the data port, or says why there is none. */
function draw(api, port) {
  schemas = new Schemas(api);
  const unneeded = [...port.isDenied ? [] : ["controlToken"], ...port.needs_key ? [] : ["agentToken"]];
  const control = { base: location.origin, unneeded };
  const data = ([{ url, variables }]) => ({
    base: port.url ?? url.replace(/{(\w+)}/, (_, name) => variables[name].default), unneeded,
    note: port.url ? "" : "This is the default address: the view could not read that of this server.",
  });
  const operations = Object.entries(api.paths).flatMap(([path, item]) => METHODS.filter((method) => item[method]).map((method) => ({
    method, path, operation: item[method], servers: item.servers, parameters: (item[method].parameters ?? []).map((one) => schemas.resolve(one)),
  })));
  part("where").textContent = `tokentap ${api.info.version} · ${amount(operations.length, "operation")}`;
  part("operations").append(...paragraphs(api.info.description));
  for (const { name, description } of api.tags) {
    group(name, description, operations.filter(({ operation }) => operation.tags[0] === name).map((one) => {
      const { method, path, operation, parameters, servers } = one;
      return entry(operation.operationId, () => [element("span", { class: "method" }, method.toUpperCase()), ` ${path}`], operation.summary,
        [method, path, operation.description, ...parameters.map((parameter) => parameter.name)], () => details(one, servers ? data(servers) : control));
    }));
  }
  group("Schemas", "", Object.entries(api.components.schemas).map(([name, schema]) => entry(`schema-${name}`, () => [name], "", [schema.description], () => schemas.body(schema))));
}

async function read(path) {
  // the header keeps the request out of the access log
  const answer = await fetch(path, { headers: { "x-tokentap-viewer": "page" } });
  if (!answer.ok) throw Object.assign(new Error(`GET ${path} returned ${answer.status}`), { status: answer.status });
  return answer.json();
}

async function open() {
  showTheme();
  part("theme").addEventListener("click", () => nextTheme());
  part("filter").addEventListener("input", () => filter(part("filter").value));
  addEventListener("hashchange", follow);
  addEventListener("keydown", (event) => {
    if (event.target.matches("input") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "t") nextTheme();
    if (event.key !== "/") return;
    event.preventDefault();
    part("filter").focus();
  });
  // other failures say nothing about tokens
  const without = ({ status }) => ({ isDenied: status === 401, needs_key: status === 401 });
  draw(...await Promise.all([read("/openapi.json"), read("/v1/data-port").catch(without)]));
  follow();
}

open().catch((error) => announce(`The document cannot be shown: ${error.message}`));
