// SPDX-License-Identifier: Apache-2.0
//! Checks the module dependencies: which module may import which, and which files may use an external crate, contain `unsafe` code or read
//! the wall clock.

#![expect(clippy::unwrap_used, reason = "a test that cannot read the sources has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The levels, from the top. A module may import modules of lower levels only.
const LEVELS: &[&[&str]] = &[
    &["main"],
    &["cli"],
    &["app"],
    &["serve", "demo"],
    &["archive"],
    &["api", "rl"],
    &["export"],
    &["generation", "chat"],
    &["engine", "session", "logits", "tokenizer", "parse"],
    &["entropy", "columns", "images", "traces"],
    &["json", "config", "metrics", "error", "logprobs", "long_work", "named_enum", "tls_client"],
    &["budget"],
];

/// Further allowed imports: the module, the imported module and the reason.
const ALLOWED: &[(&str, &str, &str)] = &[];

/// The files and folders that may use each external crate. `src/demo` may use all of them.
const CRATE_USERS: &[(&str, &[&str])] = &[
    ("reqwest", &["src/cli/control.rs", "src/cli/export/sidecar.rs", "src/traces/exporter.rs"]),
    ("opentelemetry", &["src/traces.rs", "src/traces/"]),
    ("opentelemetry_http", &["src/traces.rs", "src/traces/"]),
    ("opentelemetry_otlp", &["src/traces/"]),
    ("opentelemetry_proto", &["src/traces/"]),
    ("opentelemetry_sdk", &["src/traces.rs", "src/traces/"]),
    ("async_trait", &["src/archive/tests/", "src/traces/"]),
    ("url", &["src/engine/transport/client.rs"]),
    // the tests compare the client with hyper's
    ("hyper", &["src/serve.rs", "src/serve/", "src/engine/transport/head.rs", "src/engine/transport/tests.rs"]),
    ("httparse", &["src/engine/transport/"]),
    (
        "tokio_rustls",
        &[
            "src/engine/transport/tls.rs",
            "src/serve/connection/tls.rs",
            "src/session/ledger/valkey/connection.rs",
            "src/tls_client.rs",
        ],
    ),
    ("x509_cert", &["src/serve/connection/tls.rs"]),
    ("hyper_util", &["src/serve/connection.rs", "src/engine/transport/pool.rs", "src/engine/transport/tests.rs"]),
    ("tower", &["src/serve.rs", "src/serve/", "src/cli/demo.rs", "src/engine/transport/pool.rs"]),
    ("tonic", &["src/serve/grpc.rs", "src/serve/grpc/", "src/serve/reply_body.rs"]),
    ("tonic_prost", &[]),
    ("tonic_health", &["src/serve/grpc/"]),
    ("tonic_reflection", &["src/serve/grpc/"]),
    ("prost", &["src/serve/grpc/", "src/traces/exporter.rs"]),
    (
        "futures_util",
        &[
            "src/archive/",
            "src/cli/top.rs",
            "src/engine/transport/tests.rs",
            "src/serve/grpc.rs",
            "src/serve/grpc/",
            "src/serve/layers.rs",
            "src/serve/layers/",
            "src/session/sharing/",
        ],
    ),
    ("tokenizers", &["src/tokenizer.rs", "src/tokenizer/longest.rs", "src/tokenizer/word_encoder.rs"]),
    ("minijinja", &["src/tokenizer/template.rs", "src/tokenizer/template/"]),
    ("minijinja_contrib", &["src/tokenizer/template/"]),
    ("chrono", &["src/tokenizer/template/"]),
    (
        "sha2",
        &[
            "src/archive/batch.rs",
            "src/chat/",
            "src/images.rs",
            "src/session/",
            "src/tokenizer/render/history_variables.rs",
        ],
    ),
    ("regex", &["src/serve/control/v1/search.rs"]),
    ("object_store", &["src/archive.rs", "src/archive/"]),
    ("rustls", &["src/archive/storage.rs", "src/engine/transport/tls.rs", "src/serve/connection/tls.rs"]),
    (
        "foldhash",
        &[
            "src/api.rs",
            "src/engine/sglang/routes.rs",
            "src/generation/",
            "src/images/recent.rs",
            "src/metrics/memo.rs",
            "src/session/steps.rs",
            "src/session/store.rs",
            "src/session/store/",
        ],
    ),
    (
        "smallvec",
        &[
            "src/engine/plan.rs",
            "src/engine/sglang/",
            "src/generation/",
            "src/json/",
            "src/session/state.rs",
            "src/session/state/",
        ],
    ),
    ("dashmap", &["src/generation/entropy_store.rs", "src/session/store.rs"]),
    ("prometheus", &["src/metrics.rs", "src/metrics/"]),
    ("clap", &["src/config.rs", "src/config/"]),
    ("clap_complete", &["src/config/"]),
    ("clap_mangen", &["src/config/"]),
    ("toml", &["src/config/"]),
    ("tracing_subscriber", &["src/cli/logging.rs"]),
    ("serde_path_to_error", &["src/json/decode.rs"]),
    ("postcard", &["src/session/ledger/record.rs", "src/session/ledger/log_record.rs"]),
    ("redis", &["src/session/ledger/valkey.rs", "src/session/ledger/valkey/"]),
    ("crc32c", &["src/session/ledger/"]),
    ("fs4", &["src/session/ledger/log/directory.rs"]),
    ("libmimalloc_sys", &["src/main.rs"]),
    (
        "arrow_array",
        &["src/export/columnar.rs", "src/export/columnar/", "src/export/image_table.rs", "src/export/parquet.rs"],
    ),
    ("arrow_buffer", &["src/export/columnar/"]),
    (
        "arrow_schema",
        &["src/export/columnar.rs", "src/export/columnar/", "src/export/image_table.rs", "src/export/parquet.rs"],
    ),
    ("arrow_ipc", &["src/export/arrow.rs"]),
    ("parquet", &["src/export/image_table.rs", "src/export/parquet.rs"]),
    // with its inner module, because a module of `export` has the same name
    ("safetensors::tensor", &["src/logits/safetensors/"]),
    ("libc", &["src/serve/connection/listener.rs", "src/logits/shm.rs", "src/session/ledger/log/disk.rs"]),
    (
        "rustix",
        // the tests read the CPU time of their thread
        &["src/main.rs", "src/cli/descriptors.rs", "src/engine/transport/", "src/parse/tests/", "src/session/tests/"],
    ),
    ("cudarc", &["src/logits/cuda.rs", "src/logits/cuda/"]),
    ("crossbeam_channel", &["src/logits/slices/", "src/logits/cuda.rs", "src/logits/cuda/"]),
    ("indicatif", &["src/cli/progress.rs"]),
    ("crossterm", &["src/cli/terminal.rs", "src/cli/top.rs", "src/cli/top/screen.rs"]),
];

/// The files and folders that may contain `unsafe` code.
const UNSAFE: &[&str] = &[
    "src/entropy/cpu.rs",
    "src/logits/cuda/",
    "src/main.rs",
    "src/serve/connection/listener.rs",
    "src/engine/sglang/flat/avx2.rs",
    "src/engine/sglang/scan/avx2.rs",
];

/// The files and folders that may read the wall clock. Unless noted, they only record its time and never compare it, because setting the clock must not
/// end a wait, evict a session or reorder turns.
const WALL_CLOCK: &[&str] = &[
    // the start of a shared session
    "src/session/sharing/turns.rs",
    // the age of a turn from before a restart, which is compared with a deletion: no other clock knows it
    "src/session/sharing/missing.rs",
    "src/session/sharing/simulation/",
    "src/generation/recorder.rs",
    // the start of a span
    "src/traces/span.rs",
    // the `created` member of a chat completion
    "src/api/openai.rs",
    // the template function `strftime_now`
    "src/tokenizer/template/",
    // logs whether a certificate has expired
    "src/serve/connection/tls.rs",
    "src/session/store/eviction.rs",
    "src/session/ledger/log/writer.rs",
    "src/session/store.rs",
    "src/demo",
];

/// Imports that the levels allow and that are forbidden nevertheless: the module, the imported modules and the reason.
const FORBIDDEN: &[(&str, &[&str], &str)] = &[
    ("entropy", &["config", "metrics"], "the kernels depend on numbers only"),
    ("session", &["config", "metrics"], "the store is also used without a server, as in `tokentap export`"),
];

/// Known import cycles: the folder, its modules that import each other, and the reason.
const CYCLES: &[(&str, &[&str], &str)] = &[
    (
        "demo",
        &["admin", "engine", "generate", "info", "item", "routes", "sequence", "token_data"],
        "the routes use the engine, and the engine passes requests to the routes",
    ),
    ("demo", &["logits", "model"], "the model uses functions on logits, and the penalties use `Position`"),
    (
        "generation",
        &["events", "retries"],
        "a shared reply is a source of events, and reads events from another source",
    ),
    ("logits", &["cuda", "slices"], "the device measures slices, and its pinned memory has their slots"),
];

/// The folders and files that may name the keys of an engine.
const ENGINE_PLACES: &[&str] = &["src/engine/", "src/engine.rs", "src/demo/", "src/demo.rs", "src/api/native"];

/// The keys of SGLang's /generate, of its replies, and of its control routes and information routes.
const ENGINE_KEYS: &[&str] = &[
    "abort_all",
    "custom_logit_processor",
    "hidden_states",
    "incremental_streaming_output",
    "indexer_topk",
    "input_ids",
    "input_token_ids_logprobs",
    "input_token_logprobs",
    "input_top_logprobs",
    "is_generation",
    "is_healthy",
    "logprob_start_len",
    "max_new_tokens",
    "meta_info",
    "min_new_tokens",
    "output_ids",
    "output_token_ids_logprobs",
    "output_token_logprobs",
    "output_token_logprobs_length",
    "output_token_sampling_logprobs",
    "output_token_sampling_mask",
    "output_top_logprobs",
    "preferred_sampling_params",
    "prompt_token_ids",
    "require_reasoning",
    "return_flat_raw_output_top_logprobs",
    "return_flat_raw_top_logprobs",
    "return_flat_raw_top_logprobs_b64",
    "return_logprob",
    "return_prompt_token_ids",
    "return_sampling_mask",
    "return_text_in_logprobs",
    "routed_experts",
    "router_manager",
    "sampling_logprobs_mode",
    "sampling_params",
    "sampling_seed",
    "session_params",
    "stream_output",
    "token_ids_logprob",
    "top_logprobs_num",
    "weight_version",
    "weight_versions",
];

/// The same words as keys of other formats: the file or folder, the keys and the format.
const OTHER_KEYS: &[(&str, &[&str], &str)] = &[
    (
        "src/api/openai/",
        &[
            "custom_logit_processor",
            "return_flat_raw_output_top_logprobs",
            "return_sampling_mask",
            "weight_version",
            "weight_versions",
        ],
        "SGLang's OpenAI APIs, which these modules serve",
    ),
    (
        "src/api/openai_chat/",
        &[
            "input_ids",
            "meta_info",
            "output_ids",
            "prompt_token_ids",
            "return_prompt_token_ids",
            "return_sampling_mask",
            "routed_experts",
        ],
        "SGLang's chat completions, which this module serves and reads",
    ),
    (
        "src/api/engine_chat/translation.rs",
        &["input_ids", "max_new_tokens", "require_reasoning", "return_logprob", "sampling_params"],
        "translates between /generate and the engine's chat endpoint",
    ),
    (
        "src/api/openai_completions/",
        &["prompt_token_ids", "return_sampling_mask", "routed_experts"],
        "SGLang's completions, which this module serves",
    ),
    ("src/cli/demo.rs", &["max_new_tokens", "sampling_params"], "prints a request to the demo engine"),
    (
        "src/columns/table.rs",
        &["output_token_sampling_mask", "return_sampling_mask", "routed_experts"],
        "the table of token columns",
    ),
    ("src/cli/show/path.rs", &["weight_version"], "the export in tokentap's own format"),
    (
        "src/export/",
        &["hidden_states", "input_ids", "prompt_token_ids", "routed_experts", "weight_version", "weight_versions"],
        "the formats of trainers, and tokentap's own",
    ),
    ("src/serve/control/v1/", &["weight_version"], "tokentap's control API"),
    ("src/session/turn/sampling_sources.rs", &["max_new_tokens"], "the log of turns"),
];

/// A source file.
struct Source {
    path: String,
    /// The text without comments and unit tests.
    code: String,
    /// The whole text.
    text: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.join("src")];
    // generated code, which tests/codegen.rs checks
    let generated = root.join("src/serve/grpc/pb");
    let mut files: Vec<PathBuf> = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !path.starts_with(&generated) {
                files.push(path);
            }
        }
    }
    let mut found: Vec<Source> = files.iter().map(|path| source(root, path)).collect();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 40, "the source files are found");
    found
}

fn source(root: &Path, path: &Path) -> Source {
    let text = std::fs::read_to_string(path).unwrap();
    let product = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    let code = product.lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n");
    Source { path: path.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/"), code, text }
}

/// The top-level module of a file.
fn module(path: &str) -> String {
    let inner = path.trim_start_matches("src/").trim_end_matches(".rs");
    inner.split('/').next().unwrap().to_owned()
}

fn level(module: &str) -> usize {
    LEVELS.iter().position(|level| level.contains(&module)).unwrap_or_else(|| panic!("LEVELS does not list {module}"))
}

/// The top-level modules that a file imports by `crate::` or, in `main.rs`, by `tokentap::`.
fn imports(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for prefix in ["crate::", "tokentap::"] {
        for (at, _) in code.match_indices(prefix) {
            let rest = &code[at + prefix.len()..];
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if name.is_empty() {
                let group = rest.trim_start_matches('{').split('}').next().unwrap_or_default();
                let names = group.split(',').map(|part| part.trim().split("::").next().unwrap_or_default().to_owned());
                found.extend(names.filter(|name| !name.is_empty()));
            } else {
                found.insert(name);
            }
        }
    }
    found
}

#[test]
fn modules_import_lower_levels_only() {
    for file in sources().iter().filter(|file| file.path != "src/lib.rs" && !file.path.contains("/tests/")) {
        let own = module(&file.path);
        for other in imports(&file.code).iter().filter(|other| **other != own) {
            let allowed = ALLOWED.iter().any(|(from, to, _)| *from == own && to == other);
            assert!(level(&own) < level(other) || allowed, "{} imports {other}, which is not below it", file.path);
        }
    }
}

/// The names in backticks of each row of the Markdown table that follows `heading`, in the first column that has any.
fn table_rows(text: &str, heading: &str) -> Vec<Vec<String>> {
    let rows = text.split_once(heading).unwrap().1.lines().skip_while(|line| !line.contains("|---")).skip(1);
    rows.take_while(|line| line.trim_start_matches("//!").trim_start().starts_with('|'))
        .map(|row| row.split('`').skip(1).step_by(2).map(|name| name.trim_end_matches(".rs").to_owned()).collect())
        .collect()
}

#[test]
fn tables_of_modules_equal_the_levels() {
    let read = |path: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let levels: Vec<BTreeSet<&str>> = LEVELS.iter().map(|level| level.iter().copied().collect()).collect();

    let rows = table_rows(&read("CONTRIBUTING.md"), "| level | modules |");
    let rows: Vec<BTreeSet<&str>> = rows.iter().map(|row| row.iter().map(String::as_str).collect()).collect();
    assert_eq!(rows, levels, "CONTRIBUTING.md");

    let listed: Vec<String> = table_rows(&read("src/lib.rs"), "| module | content |").concat();
    let order: Vec<usize> = listed.iter().map(|module| level(module)).collect();
    assert!(order.is_sorted(), "src/lib.rs: {listed:?}");
    let modules: BTreeSet<&str> = listed.iter().map(String::as_str).chain(["main"]).collect();
    assert_eq!(modules, levels.into_iter().flatten().collect(), "src/lib.rs");
}

#[test]
fn serve_imports_no_single_api() {
    let apis = ["openai", "anthropic_messages"];
    for file in sources().iter().filter(|file| module(&file.path) == "serve") {
        let inner = file.path.trim_start_matches("src/").trim_end_matches(".rs");
        let used = paths(&file.code, &inner.split('/').collect::<Vec<_>>());
        let api = used
            .iter()
            .find(|path| path[0] == "api" && path.len() > 1 && apis.iter().any(|api| path[1].starts_with(api)));
        assert!(api.is_none(), "{} imports {api:?}: the part that all APIs share knows none of them", file.path);
    }
}

/// The paths that a file uses, relative to the crate root. `module` is the path of the file's module.
fn paths(code: &str, module: &[&str]) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    for (at, _) in code.match_indices("crate::").chain(code.match_indices("super::")) {
        if code[..at].ends_with("super::") || code[..at].ends_with(is_name) {
            continue;
        }
        let mut rest = &code[at..];
        let mut base: Vec<String> = Vec::new();
        if let Some(inner) = rest.strip_prefix("crate::") {
            rest = inner;
        } else {
            let ups = rest.len() - rest.trim_start_matches("super::").len();
            let depth = module.len().saturating_sub(ups / "super::".len());
            base.extend(module[..depth].iter().map(|&name| name.to_owned()));
            rest = rest.trim_start_matches("super::");
        }
        loop {
            let length = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
            if length == 0 {
                break;
            }
            base.push(rest[..length].to_owned());
            let Some(inner) = rest[length..].strip_prefix("::") else { break };
            rest = inner;
        }
        if let Some(group) = rest.strip_prefix('{') {
            for item in group.split('}').next().unwrap_or_default().split(',') {
                let name: String = item.trim().chars().take_while(|c| is_name(*c)).collect();
                found.insert(base.iter().cloned().chain([name]).collect());
            }
        }
        found.insert(base);
    }
    found
}

/// The modules that `start` imports, directly or indirectly.
fn reachable<'a>(imports: &'a BTreeMap<String, BTreeSet<String>>, start: &'a str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open = vec![start];
    while let Some(module) = open.pop() {
        for next in imports.get(module).into_iter().flatten() {
            if found.insert(&**next) {
                open.push(next);
            }
        }
    }
    found
}

#[test]
fn modules_of_one_folder_have_no_unlisted_import_cycles() {
    let sources = sources();
    let mut folders: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for file in sources.iter().filter(|file| !file.path.contains("/tests")) {
        let inner = file.path.trim_start_matches("src/").trim_end_matches(".rs");
        let module: Vec<&str> = inner.split('/').collect();
        let [folder, own, ..] = module[..] else { continue };
        let is_child = |name: &str| sources.iter().any(|file| file.path == format!("src/{folder}/{name}.rs"));
        let others = paths(&file.code, &module).into_iter().filter_map(|path| match &path[..] {
            [first, second, ..] if first == folder && second != own && is_child(second) => Some(second.clone()),
            _ => None,
        });
        folders.entry(folder.to_owned()).or_default().entry(own.to_owned()).or_default().extend(others);
    }
    assert!(folders["generation"]["generator"].contains("recorder"), "imports are found");
    for (folder, imports) in &folders {
        for module in imports.keys() {
            let back = reachable(imports, module);
            let cycle: BTreeSet<&str> =
                back.iter().copied().filter(|other| reachable(imports, other).contains(&**module)).collect();
            let known = CYCLES.iter().find(|(of, names, _)| of == folder && names.contains(&&**module));
            if let Some((_, names, reason)) = known {
                let names: BTreeSet<&str> = names.iter().copied().collect();
                assert_eq!(cycle, names, "{folder}::{module}: the list of cycles is out of date ({reason})");
            }
            assert!(cycle.is_empty() || known.is_some(), "src/{folder}: {cycle:?} form an import cycle");
        }
    }
}

#[test]
fn entropy_and_session_do_not_import_config_or_metrics() {
    for file in sources() {
        for (_, others, reason) in FORBIDDEN.iter().filter(|(own, ..)| *own == module(&file.path)) {
            let found = imports(&file.code).into_iter().find(|name| others.contains(&name.as_str()));
            assert!(found.is_none(), "{} imports {}: {reason}", file.path, found.unwrap_or_default());
        }
    }
}

#[test]
fn external_crates_are_used_in_listed_files_only() {
    for file in sources().iter().filter(|file| !file.path.starts_with("src/demo")) {
        for (name, users) in CRATE_USERS {
            let is_used = file
                .code
                .match_indices(&format!("{name}::"))
                .any(|(at, _)| !file.code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':'));
            let is_listed = users.iter().any(|user| file.path.starts_with(user));
            assert!(!is_used || is_listed, "{} uses {name}, which only {users:?} may use", file.path);
        }
    }
}

#[test]
fn unsafe_code_is_in_listed_files_and_has_safety_comments() {
    for file in sources() {
        let count = file.code.matches("unsafe {").count();
        assert!(
            count == 0 || UNSAFE.iter().any(|place| file.path.starts_with(place)),
            "{} contains unsafe code",
            file.path
        );
        let comments = file.text.matches("SAFETY:").count();
        assert!(comments >= count, "{}: {count} unsafe blocks, {comments} SAFETY comments", file.path);
    }
}

#[test]
fn wall_clock_is_read_in_listed_files_only() {
    for file in sources() {
        let reads = ["SystemTime::now", "now_ms()"].iter().any(|read| file.code.contains(read));
        let is_listed = WALL_CLOCK.iter().any(|place| file.path.starts_with(place));
        assert!(!reads || is_listed, "{} reads the wall clock: use Instant for waits and limits", file.path);
    }
}

#[test]
fn keys_of_an_engine_are_named_in_its_folder_only() {
    let mut unused: BTreeSet<(&str, &str)> =
        OTHER_KEYS.iter().flat_map(|(place, keys, _)| keys.iter().map(|key| (*place, *key))).collect();
    let mut found = Vec::new();
    for file in sources().iter().filter(|file| !file.path.contains("/tests/") && !file.path.ends_with("/tests.rs")) {
        if ENGINE_PLACES.iter().any(|place| file.path.starts_with(place)) {
            continue;
        }
        // a literal that is the key, or JSON text with the key
        let names =
            |key: &&&str| [format!("\"{key}\""), format!("\"{key}\\\"")].iter().any(|name| file.code.contains(name));
        for key in ENGINE_KEYS.iter().filter(names) {
            let mut others =
                OTHER_KEYS.iter().filter(|(place, keys, _)| file.path.starts_with(place) && keys.contains(key));
            match others.next() {
                Some((place, ..)) => drop(unused.remove(&(*place, *key))),
                None => found.push(format!("{}: {key}", file.path)),
            }
        }
    }
    assert!(found.is_empty(), "keys of an engine outside src/engine: {found:#?}");
    assert!(unused.is_empty(), "OTHER_KEYS lists keys that no file names: {unused:?}");
}
