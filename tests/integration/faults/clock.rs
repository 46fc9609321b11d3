// SPDX-License-Identifier: Apache-2.0
//! The time of day jumps, in a real process: Debian's libfaketime replaces its clock and reads the offset from a file.
//!
//! tokentap has no clock abstraction, because nothing in it decides by the time of day (`tests/layering.rs` checks that). Timeouts use the
//! monotonic clock, which libfaketime leaves unchanged here.

use std::path::PathBuf;

use super::stage::{metric, read};
use crate::crash::StandaloneEngine;
use crate::crash::trainers::generate_turn;
use crate::support::binary::Binary;
use crate::support::client::get;
use crate::support::manual_upstream::soon;

pub const JUMPS: &str = "the time of day jumps";

/// The path of the library in Debian.
fn library() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").unwrap().map(|entry| entry.unwrap().path());
    let mut found = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1")).filter(|path| path.exists());
    found.next().expect("Debian's package faketime is installed")
}

/// The start times of a session's turns, in milliseconds since 1970.
async fn start_times(binary: &Binary, session: &str) -> Vec<u64> {
    let shown: serde_json::Value = serde_json::from_str(&read(binary.control, session).await).unwrap();
    let rows = shown["trajectories"].as_array().unwrap();
    let longest = rows.iter().map(|row| row["turns"].as_array().unwrap()).max_by_key(|turns| turns.len()).unwrap();
    longest.iter().map(|turn| turn["started_ms"].as_u64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Debian's faketime: make faults"]
async fn clock_jumps_do_not_lose_end_or_reorder_sessions() {
    let (alone, dir) = (StandaloneEngine::start().await, tempfile::tempdir().unwrap());
    let (time, data) = (dir.path().join("time"), dir.path().join("data"));
    let set = |offset: &str| std::fs::write(&time, offset).unwrap();
    let library = library();
    let environment = [
        ("LD_PRELOAD", library.to_str().unwrap()),
        ("FAKETIME_TIMESTAMP_FILE", time.to_str().unwrap()),
        ("FAKETIME_NO_CACHE", "1"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ("TOKENTAP_DATA_DIR", data.to_str().unwrap()),
        ("TOKENTAP_SESSION_IDLE", "1s"),
        ("TOKENTAP_SESSION_TTL", "1h"),
    ];
    set("+0d");
    let binary = Binary::serve(alone.addr, &environment).await.probed().await;
    let control = binary.control;
    let mut prompt = vec![1, 2, 3];
    // offsets in days, alternately backward and forward
    for (turn, offset) in ["+0d", "-3650d", "+7300d", "-9000d", "+1d"].into_iter().enumerate() {
        set(offset);
        let reply = generate_turn(binary.data, "s", &prompt, "").await;
        prompt.extend(serde_json::from_value::<Vec<u32>>(reply["output_ids"].clone()).unwrap());
        generate_turn(binary.data, &format!("other-{turn}"), &[4, 5, 6], "").await;
        // after one idle second, independent of the time of day
        let finished = format!("\"session\":\"other-{turn}\"");
        let appears = async { while !get(control, "/v1/trajectories?limit=1000").await.text().contains(&finished) {} };
        soon("an idle session finishes", appears).await;
    }
    let stamps = start_times(&binary, "s").await;
    assert_eq!(stamps.len(), 5, "one path of five turns, in the order of their calls: {stamps:?}");
    assert!(stamps[1] < stamps[0] && stamps[2] > stamps[0] && stamps[3] < stamps[1], "the clock did jump: {stamps:?}");
    assert_eq!(metric(control, "tokentap_sessions_evicted_total", "").await, 0.0);
    assert_eq!(metric(control, "tokentap_entropy_store_evictions_total", "").await, 0.0);
    assert_eq!(metric(control, "tokentap_log_lost_records_total", "").await, 0.0);
    let lasted = metric(control, "tokentap_request_duration_seconds_sum", "").await;
    assert!((0.0..60.0).contains(&lasted), "requests lasted {lasted} s");
    let pages = [get(control, "/v1/trajectories?limit=1000").await.text(), read(control, "s").await];
    set("-4000d");
    binary.kill();
    let binary = Binary::serve(alone.addr, &environment).await.probed().await;
    assert_eq!(read(binary.control, "s").await, pages[1], "also after a restart in another year");
    assert_eq!(get(binary.control, "/v1/trajectories?limit=1000").await.text(), pages[0]);
    assert_eq!(metric(binary.control, "tokentap_sessions_evicted_total", "").await, 0.0);
}
