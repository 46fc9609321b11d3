// SPDX-License-Identifier: Apache-2.0
//! Paths that two parsers might interpret differently, and control routes hidden in them.

use super::super::case::{Case, Expected, answered, case, passed, refused};

fn path(path: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n").into_bytes()
}

pub fn cases() -> Vec<Case> {
    let of = |list: &[&'static str], expected: fn() -> Expected| -> Vec<Case> {
        list.iter()
            .map(|target| case(target, "3986 6.2.2", path(&format!("{target}?TTTTT")), expected()).plain())
            .collect()
    };
    // a server after tokentap might normalize these
    let resolved = of(
        &[
            "/a/../b",
            "/a/./b",
            "/..",
            "/.",
            "/%2e%2e/b",
            "/a/.%2E",
            "/a/%2e",
            "/a\\b",
            "/..\\flush_cache",
            "/{x}",
            "/a|b'\"",
        ],
        || answered(&[400]),
    );
    // the engine decodes these before it looks up the route, and a server before it may remove dots and double slashes
    let control = of(
        &[
            "/flush_cache",
            "/%66lush_cache",
            "/flush_cache/",
            "/flush%5fcache",
            "/flush%5Fcache",
            "/%66%6c%75%73%68%5f%63%61%63%68%65",
            "/flush_cache%2f",
            "/flush_cache%0a",
            "/flush_cache%0A",
            "/sessions/s/flush_cache",
            "/sessions/s/%66lush_cache",
            "/sessions/s/flush_cache%0a",
            "/sessions/%73/flush_cache/",
            "/start_profile",
            "/%73tart_profile",
            "/hicache/x/../y%2f",
            "//flush_cache",
            "/flush_cache//",
            "/%2fflush_cache",
            "/./flush_cache",
            "/../flush_cache",
            "/x/../flush_cache",
            "/x/%2e%2e/flush_cache",
            "/x%2f..%2fflush_cache",
            "/sessions/s//flush_cache",
            "/sessions/s/./flush_cache",
            "/sessions/s/../../flush_cache",
        ],
        || answered(&[403]),
    );
    // no route of the engine, decoded or not
    let none = of(
        &[
            "/flush_cache;x",
            "/flush_cache%3fx",
            "/flush_cache%23",
            "/flush_cache%00",
            "/flush_cache%20",
            "/flush_cache%0d%0a",
            "/flush_cache%0a%0a",
            "/%2566lush_cache",
            "/FLUSH_CACHE",
            "/a%2fb//c/",
            "/a;b=c/d",
            "/...",
            "/%ff",
            "/%zz",
            "/sessions",
            "/sessions/s",
            "/%73essions/s/flush_cache",
            "/sessions/s/sessions/t/flush_cache",
        ],
        || passed(""),
    );
    let sessions = of(
        &[
            "/sessions/../flush_cache",
            "/sessions//flush_cache",
            "/sessions/..%2fx/flush_cache",
            "/sessions/%2e%2e/flush_cache",
            "/sessions/a%2fb/p",
            "/sessions/%00/p",
            "/sessions/%0a/p",
            "/sessions/a%20b/p",
        ],
        || answered(&[400]),
    );
    let mut cases: Vec<Case> = [resolved, control, none, sessions].concat();
    cases.extend([
        case("\\flush_cache", "9112 3.2", path("\\flush_cache?TTTTT"), refused(&[400])).plain(),
        case("a control route with a fragment", "3986 3.5", path("/flush_cache#TTTTT"), answered(&[403])).plain(),
        case(
            "a control route in absolute form",
            "9112 3.2.2",
            path("http://localhost/flush_cache?TTTTT"),
            answered(&[403]),
        )
        .plain(),
        case("a session's path", "3986 3.3", path("/sessions/s/a%2fb?TTTTT"), passed(""))
            .plain()
            .target("/a%2fb?TTTTT"),
        case("a session's control characters", "3986 3.3", path("/sessions/s/a?x=%0d%0aX:y&TTTTT"), passed(""))
            .plain()
            .target("/a?x=%0d%0aX:y&TTTTT"),
    ]);
    cases
}
