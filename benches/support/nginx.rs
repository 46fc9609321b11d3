// SPDX-License-Identifier: Apache-2.0
//! nginx as a proxy before the engine.

use std::path::Path;

/// Where Debian puts it, which is not in every `PATH`.
const DEBIAN: &str = "/usr/sbin/nginx";

/// Whether it is installed.
pub fn exists() -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    Path::new(DEBIAN).exists() || std::env::split_paths(&paths).any(|path| path.join("nginx").is_file())
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Writes a configuration to `directory` and returns the command line: one process without separate workers, with nginx's defaults except
/// for settings that a proxy of streams needs.
pub fn command(port: u16, upstream: u16, directory: &Path) -> Vec<String> {
    let config = format!(
        "daemon off; master_process off; worker_processes 1; pid nginx.pid; error_log error.log crit;
events {{ worker_connections 4096; }}
http {{
  access_log off; tcp_nodelay on; keepalive_timeout 600s; keepalive_requests 1000000000; client_max_body_size 64m;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  upstream engine {{ server 127.0.0.1:{upstream}; keepalive 1024; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection \"\";
      proxy_buffering off; proxy_request_buffering off; proxy_buffer_size 64k; proxy_buffers 8 64k;
    }}
  }}
}}
"
    );
    std::fs::write(directory.join("nginx.conf"), config).unwrap();
    let program = if Path::new(DEBIAN).exists() { DEBIAN } else { "nginx" };
    let prefix = directory.to_str().unwrap();
    [program, "-p", prefix, "-c", "nginx.conf", "-e", "error.log"].map(str::to_owned).to_vec()
}
