// SPDX-License-Identifier: Apache-2.0
//! The files of the page, and how they are served.

use tokentap::serve::control::page::{ASSETS, POLICY, asset};

use crate::support::client::{Connection, get, request, written};
use crate::support::manual_upstream::ManualUpstream;
use crate::support::proxy::Proxy;
use crate::support::upstream::message;

#[tokio::test(flavor = "multi_thread")]
async fn files_have_security_headers() {
    let upstream = ManualUpstream::start().await;
    let proxy = Proxy::start(upstream.addr, &[]).await;
    for asset in &ASSETS {
        let answer = get(proxy.control, asset.path).await;
        assert_eq!((answer.status, answer.text()), (200, asset.text.to_owned()), "{}", asset.path);
        let kind = match asset.path.rsplit_once('.').map(|(_, ending)| ending) {
            None | Some("html") => "text/html; charset=utf-8",
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some(_) => "image/svg+xml",
        };
        for (name, value) in [
            ("content-type", kind),
            ("content-security-policy", POLICY),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-cache"),
            ("cross-origin-resource-policy", "same-origin"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{name} of {}", asset.path);
        }
        assert_eq!(request(proxy.control, "HEAD", asset.path, &[], b"").await.status, 200, "{}", asset.path);
        let refused = request(proxy.control, "POST", asset.path, &[], b"{}").await;
        assert_eq!((refused.status, refused.header("allow")), (405, Some("GET, HEAD")), "{}", asset.path);
    }
    for directive in ["default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'"] {
        assert!(POLICY.split("; ").any(|own| own == directive), "{directive} is in {POLICY}");
    }
    for closed in ["base-uri 'none'", "frame-ancestors 'none'", "form-action 'none'"] {
        assert!(POLICY.split("; ").any(|own| own == closed), "{closed} is in {POLICY}");
    }
    assert!(!POLICY.contains("unsafe") && !POLICY.contains("http"), "{POLICY}");
    for path in
        ["/page", "/page/", "/page/main.js/", "/page/../main.js", "/page/nothing.js", "/index.html", "/page/MAIN.js"]
    {
        assert_eq!(get(proxy.control, path).await.status, 404, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_files_get_304() {
    let upstream = ManualUpstream::start().await;
    let proxy = Proxy::start(upstream.addr, &[]).await;
    let tag = get(proxy.control, "/").await.header("etag").unwrap().to_owned();
    assert!(tag.starts_with('"') && tag.ends_with('"') && tag.len() > 10, "{tag}");
    let status = async |known: &str| {
        let answer =
            request(proxy.control, "GET", "/page/main.js", &[("if-none-match", known), ("connection", "close")], b"")
                .await;
        assert_eq!(answer.body.is_empty(), answer.status == 304, "{known}");
        assert_eq!(
            answer.header("etag"),
            Some(tag.as_str()),
            "one name for all files: modules of two versions must not mix"
        );
        answer.status
    };
    for known in [&*tag, "*", &format!("W/{tag}"), &format!("\"old\", {tag}")] {
        assert_eq!(status(known).await, 304, "{known}");
    }
    for other in ["\"old\"", "", tag.trim_matches('"')] {
        assert_eq!(status(other).await, 200, "{other}");
    }
    // a 304 has no body, so the next bytes are the next reply
    let mut connection = Connection::open(proxy.control).await;
    connection.send(&written(proxy.control, "GET", "/", &[("if-none-match", &tag)], b"")).await;
    connection.send(&written(proxy.control, "GET", "/livez", &[], b"")).await;
    assert!(connection.read_until(|read| read.ends_with(b"ok\n")).await, "the connection stays open");
}

#[tokio::test(flavor = "multi_thread")]
async fn page_needs_no_token_and_its_data_does() {
    let upstream = ManualUpstream::start().await;
    let proxy = Proxy::start(upstream.addr, &["--control-token", "secret"]).await;
    for asset in &ASSETS {
        assert_eq!(get(proxy.control, asset.path).await.status, 200, "{} needs no token", asset.path);
        assert!(!asset.text.contains("secret"), "{}", asset.path);
    }
    let data = ["/v1/sessions?order=newest", "/v1/requests", "/v1/sessions/x", "/v1/sessions/x/paths/0", "/detokenize"];
    for path in data {
        assert_eq!(get(proxy.control, path).await.status, 401, "{path}");
    }
    for path in ["/", "/page/main.js"] {
        for (name, value) in [("host", "evil.example"), ("origin", "http://evil.example")] {
            let answer = request(proxy.control, "GET", path, &[(name, value)], b"").await;
            assert_eq!(answer.status, 403, "{path} with {name}: DNS rebinding must not work");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn token_texts_are_requested_with_the_engine_key() {
    let mut upstream = ManualUpstream::start().await;
    let flags = ["--control-token", "secret", "--upstream-api-key", "api", "--upstream-admin-key", "admin"];
    let proxy = Proxy::start(upstream.addr, &flags).await;
    let body = br#"{"tokens":[[1],[2]],"skip_special_tokens":false}"#;
    let client = tokio::spawn(async move {
        request(proxy.control, "POST", "/detokenize", &[("authorization", "Bearer secret")], body).await
    });
    let call = upstream.next().await;
    assert_eq!(call.values("authorization"), ["Bearer api"], "the control token is not sent to the engine");
    call.reply(&message(200, &[("content-type", "application/json")], br#"{"text":["a","b"]}"#)).await;
    assert_eq!(client.await.unwrap().text(), r#"{"text":["a","b"]}"#);
}

#[test]
fn page_loads_no_external_content_and_renders_no_markup() {
    const FORBIDDEN: [&str; 17] = [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "setTimeout(\"",
        "srcdoc",
        "DOMParser",
        "createContextualFragment",
        "setHTML",
        "javascript:",
        "import(",
        "WebSocket",
        "EventSource",
        "sendBeacon",
        "XMLHttpRequest",
    ];
    for asset in &ASSETS {
        for forbidden in FORBIDDEN {
            assert!(!asset.text.contains(forbidden), "{} names {forbidden}", asset.path);
        }
        let text = asset.text.replace("http://www.w3.org/2000/svg", "");
        for elsewhere in ["http:", "https:", "//cdn", "url(", "@import", "src=\"//", "href=\"//"] {
            assert!(!text.contains(elsewhere), "{} names {elsewhere}", asset.path);
        }
        let lines = asset.text.lines().count();
        assert!(lines <= 300, "{} has {lines} lines: split it by subject", asset.path);
    }
    let inline = |word: &str| word.starts_with("style=") || word.starts_with("on") && word.contains('=');
    for (path, modules) in [("/", &["ahead", "start", "main"][..]), ("/page/openapi.html", &["openapi"])] {
        let html = asset(path).unwrap().text;
        assert!(!html.split_whitespace().any(inline) && !html.contains("<style"), "{path}: no inline code");
        let scripts: Vec<&str> = html
            .match_indices("<script")
            .map(|(at, _)| html[at..].split_inclusive("</script>").next().unwrap())
            .collect();
        let expected = modules.iter().map(|name| format!(r#"<script type="module" src="/page/{name}.js"></script>"#));
        assert_eq!(scripts, expected.collect::<Vec<_>>(), "{path}");
    }
    // the page loads none of the files of the API view
    let is_of_api = |path: &str| path.starts_with("/page/openapi.") || path == "/page/schema.js";
    let bytes = |of_api: bool| -> usize {
        ASSETS.iter().filter(|asset| is_of_api(asset.path) == of_api).map(|asset| asset.text.len()).sum()
    };
    let sizes = (bytes(false), bytes(true));
    assert!(sizes.0 < 290_000 && sizes.1 < 18_000, "{sizes:?} bytes");
}

#[test]
fn page_files_match_their_references() {
    let paths: Vec<&str> = ASSETS.iter().map(|asset| asset.path).collect();
    let mut used = vec!["/".to_owned()];
    for asset in &ASSETS {
        for (at, _) in asset.text.match_indices("from \"./") {
            let name = asset.text[at + 8..].split('"').next().unwrap();
            used.push(format!("/page/{name}"));
        }
        for (at, _) in asset.text.match_indices("\"/page/") {
            used.push(asset.text[at + 1..].split('"').next().unwrap().to_owned());
        }
    }
    for path in &used {
        assert!(paths.contains(&path.as_str()), "{path} does not exist");
    }
    for path in paths {
        assert!(used.iter().any(|name| name == path), "{path} is never used");
    }
}

#[test]
fn modules_of_the_first_screen_are_preloaded() {
    let text = |name: &str| asset(&format!("/page/{name}")).unwrap().text;
    let mut reached = vec!["ahead.js", "start.js"];
    let mut at = 0;
    while let Some(&name) = reached.get(at) {
        let text = text(name);
        for (at, found) in text.match_indices("from \"./") {
            let imported = text[at + found.len()..].split('"').next().unwrap();
            if !reached.contains(&imported) {
                reached.push(imported);
            }
        }
        at += 1;
    }
    let html = ASSETS[0].text;
    let link = r#"<link rel="modulepreload" href="/page/"#;
    let mut preloaded: Vec<&str> =
        html.match_indices(link).map(|(at, _)| html[at + link.len()..].split('"').next().unwrap()).collect();
    preloaded.sort_unstable();
    let mut imported = reached.split_off(2);
    imported.sort_unstable();
    assert_eq!(preloaded, imported);
    assert!(!imported.contains(&"main.js"), "the other views are loaded after the first screen");
}
