// SPDX-License-Identifier: Apache-2.0
// The fragment of the URL: it names a path and a token, a comparison, a group, or the run. A token is named by its index in `token_ids`.
//
//   #/SESSION   #/SESSION/LEAF   #/SESSION/LEAF/TOKEN   with the query `view=chat`
//   #compare/SESSION/LEAF/SESSION/LEAF   #compare/SESSION/LEAF/SESSION/LEAF/TOKEN
//   #group/SESSION/TURN   #group/SESSION/TURN/all   #group/SESSION/TURN/all?where=CONDITIONS
//   #run   #run/STEP   with the query `by`, `where`, `sort` and `show`

const PATH = /^#\/([^/?]+)(?:\/(\d+)(?:\/(\d+))?)?(\?view=chat)?$/;
const COMPARE = /^#compare\/([^/]+)\/(\d+)\/([^/]+)\/(\d+)(?:\/(\d+))?$/;
const GROUP = /^#group\/([^/]+)\/(\d+)(?:(\/all)(?:\?(.*))?)?$/;
const RUN = /^#run(?:\/([^/?]*))?(?:\?(.*))?$/;

const number = (text) => (text === undefined ? null : Number(text));

/** The address in a fragment; null if it names nothing. */
export function parse(hash) {
  try {
    let parts = PATH.exec(hash);
    if (parts) return { view: "path", session: decodeURIComponent(parts[1]), leaf: number(parts[2]), at: number(parts[3]), isChat: parts[4] !== undefined };
    parts = COMPARE.exec(hash);
    if (parts) {
      const [left, right] = [1, 3].map((at) => ({ session: decodeURIComponent(parts[at]), leaf: Number(parts[at + 1]) }));
      return { view: "compare", left, right, at: number(parts[5]) };
    }
    parts = RUN.exec(hash);
    if (parts) {
      const query = new URLSearchParams(parts[2]);
      const step = parts[1] === undefined ? null : decodeURIComponent(parts[1]);
      return { view: "run", step, by: query.get("by"), where: query.get("where") ?? "", sort: query.get("sort"), show: query.get("show") };
    }
    parts = GROUP.exec(hash);
    return parts && { view: "group", session: decodeURIComponent(parts[1]), turn: Number(parts[2]), all: parts[3] !== undefined, where: new URLSearchParams(parts[4]).get("where") ?? "" };
  } catch {
    return null; // not UTF-8 in percent encoding, such as `#/%` or `#/%ff`
  }
}

/** The fragment of an address. */
export function format(address) {
  const path = ({ session, leaf }) => `${encodeURIComponent(session)}${leaf === null ? "" : `/${leaf}`}`;
  const token = (address.at ?? -1) >= 0 ? `/${address.at}` : "";
  if (address.view === "compare") return `#compare/${path(address.left)}/${path(address.right)}${token}`;
  if (address.view === "run") return run(address);
  if (address.view === "group") return group(address);
  return `#/${path(address)}${token}${address.isChat ? "?view=chat" : ""}`;
}

function group({ session, turn, all, where }) {
  return `#group/${encodeURIComponent(session)}/${turn}${all ? "/all" : ""}${all && where ? `?${new URLSearchParams({ where })}` : ""}`;
}

function run({ step, by, where, sort, show }) {
  const query = new URLSearchParams({ ...(by && { by }), ...(where && { where }), ...(show && { show }), ...(sort && { sort }) });
  return `#run${step === null ? "" : `/${encodeURIComponent(step)}`}${query.size ? `?${query}` : ""}`;
}

/** Milliseconds after which a chosen token is in the address bar. Browsers limit how often a page may change its address. */
const SETTLED = 250;
let waiting;

/** Puts an address into the address bar without a new entry of the history; `soon` waits for further changes. */
export function replace(address, soon = false) {
  clearTimeout(waiting);
  const put = () => history.replaceState(history.state, "", format(address));
  const before = location.hash;
  // a link that was followed meanwhile is not replaced before its event
  if (soon) waiting = setTimeout(() => location.hash === before && put(), SETTLED);
  else put();
}

/** Drops a change that waits, because another view is opened. */
export function drop() {
  clearTimeout(waiting);
}

/** Puts an address into the address bar as a new entry of the history, unless it is there already. */
export function push(address) {
  clearTimeout(waiting);
  if (location.hash !== format(address)) history.pushState(null, "", format(address));
}
