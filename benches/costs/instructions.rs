// SPDX-License-Identifier: Apache-2.0
//! Counts the user instructions of a request with callgrind: tokentap in its own process, and nginx for comparison.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::measured::{body, body_of, exchange};
use crate::nginx;

/// One kind of request.
pub struct Request {
    pub name: &'static str,
    body: String,
    /// Requests before counting starts, and counted ones.
    times: [u32; 2],
    /// What a number is divided by: the tokens of a stream, or 1.
    units: u32,
}

impl Request {
    pub fn all() -> [Self; 4] {
        let stream = ",\"stream\":true";
        [
            Self { name: "/generate, 16 tokens", body: body(16, ""), times: [100, 200], units: 1 },
            Self { name: "/generate, 512 tokens", body: body(512, ""), times: [60, 60], units: 1 },
            Self { name: "a token of a stream of 512", body: body(512, stream), times: [10, 20], units: 512 },
            Self { name: "/generate, 50,000 prompt ids", body: body_of(50_000, 16, ""), times: [20, 40], units: 1 },
        ]
    }
}

/// The programs, with the name of the column and the flags of `serve`.
const COLUMNS: [(&str, &str); 4] = [
    ("off", "--record false --entropy off"),
    ("no record", "--record false"),
    ("default", "--session-bytes 16MiB"),
    ("default with a log", "--session-bytes 16MiB --data-dir"),
];

/// Prints a table: a row for each request whose name contains `filter`, a column for nginx and for each of the settings.
///
/// `binary` is the tokentap to count.
pub fn print(binary: &str, engine: SocketAddr, filter: &str) {
    let requests: Vec<Request> = Request::all().into_iter().filter(|request| request.name.contains(filter)).collect();
    let mut columns = Vec::new();
    if nginx::exists() {
        let command = |folder: &Path| {
            let port = nginx::free_port();
            (port, nginx::command(port, engine.port(), folder))
        };
        columns.push(("nginx", counts(&requests, command)));
    }
    for (name, flags) in COLUMNS {
        let arguments = |folder: &Path| {
            let listen = nginx::free_port();
            let fixed = format!(
                "{binary} serve --upstream http://{engine} --listen 127.0.0.1:{listen} --control-listen 127.0.0.1:0 --vocab-size 151936 --log warn {flags}"
            );
            let mut arguments: Vec<String> = fixed.split(' ').map(str::to_owned).collect();
            if flags.ends_with("--data-dir") {
                arguments.push(folder.join("log").to_str().unwrap().to_owned());
            }
            (listen, arguments)
        };
        columns.push((name, counts(&requests, arguments)));
    }
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    println!("| instructions | {} |\n|---|{}", names.join(" | "), "---|".repeat(names.len()));
    for (at, request) in requests.iter().enumerate() {
        let cells: Vec<String> = columns.iter().map(|(_, counts)| format!("{}", counts[at])).collect();
        println!("| {} | {} |", request.name, cells.join(" | "));
    }
}

/// The instructions of each of `requests`. `arguments` returns the port and the command line of the program.
fn counts(requests: &[Request], arguments: impl Fn(&Path) -> (u16, Vec<String>)) -> Vec<u64> {
    let folder = Folder::new();
    let (port, arguments) = arguments(&folder.0);
    let counted = Counted::start(&folder.0, port, &arguments);
    let counts = requests.iter().map(|request| counted.instructions(request)).collect();
    if let Some(kept) = std::env::var_os("KEEP") {
        counted.keep(Path::new(&kept));
    }
    counts
}

/// A program under callgrind.
struct Counted {
    process: Child,
    port: u16,
    out: PathBuf,
}

impl Counted {
    fn start(folder: &Path, port: u16, arguments: &[String]) -> Self {
        let out = folder.join("out");
        let process = Command::new("valgrind")
            .args(["--tool=callgrind", "--quiet", &format!("--callgrind-out-file={}", out.display())])
            .args(arguments)
            .stdout(Stdio::null())
            .spawn()
            .expect("valgrind starts");
        let counted = Self { process, port, out };
        let limit = Instant::now() + Duration::from_secs(60);
        // a reply with entropies shows that the engine has been probed
        let measures =
            arguments.iter().any(|argument| argument == "serve") && !arguments.iter().any(|argument| argument == "off");
        let is_ready = |client: &mut TcpStream| {
            let reply = exchange(client, "", &body(16, "")).unwrap_or_default();
            let has_entropies = memchr::memmem::find(&reply, b"\"source\":\"top_k\"").is_some();
            reply.starts_with(b"HTTP/1.1 200 OK") && (!measures || has_entropies)
        };
        while !TcpStream::connect(("127.0.0.1", port)).is_ok_and(|mut client| is_ready(&mut client)) {
            assert!(Instant::now() < limit, "the program does not become ready");
            std::thread::sleep(Duration::from_millis(200));
        }
        counted
    }

    fn instructions(&self, request: &Request) -> u64 {
        let mut client = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        client.set_nodelay(true).unwrap();
        let [before, counted] = request.times;
        let mut send = |times| {
            for _ in 0..times {
                let reply = exchange(&mut client, "", &request.body).unwrap();
                assert!(reply.starts_with(b"HTTP/1.1 200 OK"), "{}", String::from_utf8_lossy(&reply));
            }
        };
        send(before);
        self.control("--zero");
        send(counted);
        let dumps = self.dumps();
        self.control("--dump");
        let all = self.dumps();
        let path = all.iter().find(|path| !dumps.contains(path)).expect("callgrind writes a dump");
        let lines = BufReader::new(fs::File::open(path).unwrap()).lines();
        let sum = |line: std::io::Result<String>| line.ok()?.strip_prefix("summary: ").map(str::to_owned);
        let total: u64 = lines.filter_map(sum).map(|count| count.trim().parse::<u64>().unwrap()).sum();
        total / u64::from(counted * request.units)
    }

    fn dumps(&self) -> Vec<PathBuf> {
        let folder = self.out.parent().unwrap();
        let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        paths.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("out.")).collect()
    }

    fn control(&self, what: &str) {
        let done = Command::new("callgrind_control")
            .args([what, &self.process.id().to_string()])
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(done.success(), "callgrind_control {what} failed");
    }

    /// Copies the profiles to this folder, for callgrind_annotate.
    fn keep(&self, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for path in self.dumps() {
            fs::copy(&path, to.join(format!("{}-{}", self.process.id(), path.file_name().unwrap().to_str().unwrap())))
                .unwrap();
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // both fail only if the process has ended
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path =
            std::env::temp_dir().join(format!("tokentap-instructions-{}-{}", std::process::id(), nginx::free_port()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
