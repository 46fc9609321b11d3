// SPDX-License-Identifier: Apache-2.0
//! h2load on the control port.

use std::process::Command;

use crate::engine;
use crate::tap::{Tap, ask, post};

pub async fn run(requests: usize) {
    let upstream = engine::start().await;
    let tap = Tap::start(upstream, &[]).await;
    for session in 0..200 {
        let body = r#"{"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":16,"temperature":1.0}}"#;
        let name = format!("session-{session}");
        let (status, _) =
            ask(tap.data, &post("/generate", &[("x-session-id", &name)], body.as_bytes())).await.expect("an answer");
        assert_eq!(status, 200, "a session begins");
    }
    let idle = tap.usage();
    println!("h2load -c 50 -m 20 -n {requests}, HTTP/2; 200 sessions");
    for path in ["/livez", "/metrics", "/v1/sessions"] {
        let url = format!("http://{}{path}", tap.control);
        let load = tokio::task::spawn_blocking(move || {
            let arguments =
                ["60", "h2load", "-c", "50", "-m", "20", "-n", &requests.to_string(), &url].map(str::to_owned);
            Command::new("timeout").args(arguments).output().expect("h2load is installed")
        });
        let output = load.await.expect("the waiting task does not panic");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = |begin: &str| text.lines().find(|line| line.starts_with(begin)).unwrap_or("?").to_owned();
        println!("  {path}: {}\n    {}", line("finished in"), line("requests:"));
        println!("    {}", tap.usage());
        let fine = format!("{requests} succeeded, 0 failed, 0 errored, 0 timeout");
        assert!(line("requests:").ends_with(&fine), "{path}: every request is answered\n{text}");
        assert!(line("status codes:").contains(&format!("{requests} 2xx")), "{path}: with a 200\n{text}");
    }
    println!("  before {idle}; after {}", tap.usage());
}
