// SPDX-License-Identifier: Apache-2.0
//! Child processes, each pinned to a core, ended when dropped.

use std::process::{Child, Command, Stdio};

/// Where the load generator and the engine run.
pub const HARNESS_CORE: usize = 0;
/// Where the proxy runs.
pub const PROXY_CORE: usize = 1;

/// A running child.
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts `program` on `core`; its standard input stays open until the drop.
    pub fn start(program: &str, arguments: &[String], core: usize, stdout: Stdio) -> Self {
        let mut command = match can_pin() {
            true => {
                let mut command = Command::new("taskset");
                // taskset becomes the program, so the process id is the program's
                command.args(["-c", &core.to_string(), program]);
                command
            }
            false => Command::new(program),
        };
        let own = std::env::vars().map(|(name, _)| name).filter(|name| name.starts_with("TOKENTAP_"));
        own.for_each(|name| _ = command.env_remove(name));
        let child = command.args(arguments).stdin(Stdio::piped()).stdout(stdout).spawn();
        Self { child: child.unwrap_or_else(|error| panic!("{program}: {error}")) }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its standard output, if that is a pipe.
    pub fn stdout(&mut self) -> impl std::io::Read + use<> {
        self.child.stdout.take().unwrap()
    }

    /// Whether it still runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // both fail only if the process has ended
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lets this process and those that it starts open as many files as the system allows.
pub fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit }).unwrap();
}

/// Moves this process to `core`.
pub fn pin_self(core: usize) {
    if !can_pin() {
        println!("(no process is pinned: that needs taskset and two cores)\n");
        return;
    }
    let arguments = ["-acp".to_owned(), core.to_string(), std::process::id().to_string()];
    Command::new("taskset").args(arguments).stdout(Stdio::null()).status().unwrap();
}

fn can_pin() -> bool {
    static CAN: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *CAN.get_or_init(|| {
        std::thread::available_parallelism().is_ok_and(|cores| cores.get() > PROXY_CORE) && has("taskset")
    })
}

/// Whether the program exists.
pub fn has(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).chain(["/usr/sbin".into()]).any(|path| path.join(program).is_file())
}
