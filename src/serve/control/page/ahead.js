// SPDX-License-Identifier: Apache-2.0
// Sends the requests of the first screen, and applies the theme, while the other modules load.

import { parse } from "./address.js";
import { ahead } from "./api.js";
import { TABLES } from "./columns.js";
import { ALL, pagePath, shownOf, stepsPath } from "./selection.js";
import { RUNNING, listPath } from "./sessions.js";
import { show as showTheme } from "./theme.js";

ahead(listPath());
ahead(RUNNING);
// without an address the run is shown, if there is more than one session
const address = parse(location.hash) ?? ALL;
if (address.view === "run") {
  ahead(stepsPath(address, address.by ?? "step"));
  if (!TABLES.get(shownOf(address)).isByStep) ahead(pagePath(address));
}
showTheme();
