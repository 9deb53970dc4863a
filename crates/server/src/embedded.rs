//! The built-in configuration, for a start without a configuration file.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use weir_conf::{ConfigTree, read_text};

use crate::version::VERSION;

/// An in-memory configuration: the built-in one, or one that a tool has made.
#[derive(Debug)]
pub struct InMemory {
    /// Its name in messages.
    pub name: &'static str,
    /// Its text.
    pub text: String,
    /// The directory for temporary files of requests. `None` if the configuration needs none.
    pub temporary: Option<PathBuf>,
}

impl InMemory {
    /// The built-in configuration.
    pub fn built_in() -> InMemory {
        InMemory { name: NAME, text: text(), temporary: None }
    }

    /// Parses the configuration, after the directives of `-g`.
    pub fn tree(&self, globals: Option<&str>) -> ConfigTree {
        let globals = globals.unwrap_or_default();
        read_text(Path::new(self.name), format!("{globals} {}", self.text).as_bytes())
    }
}

/// The address of the built-in configuration.
const ADDRESS: &str = "127.0.0.1:8080";

/// The configuration's name in messages.
const NAME: &str = "built-in configuration";

fn text() -> String {
    format!(
        "worker_threads auto;
daemon off;
error_log stderr warn;
events {{ }}
http {{
    access_log off;
    server {{
        listen {ADDRESS};
        status_zone all;
        location = / {{
            status_zone off;
            weir_dashboard \"{NOTE}\";
        }}
        location / {{
            return 200 \"weir {VERSION} is running\\n\";
        }}
        location = /status {{
            stub_status;
        }}
        location = /metrics {{
            weir_status;
        }}
    }}
}}
"
    )
}

/// The note above the panel.
const NOTE: &str = "weir runs with the configuration that is built in. To see it work: \
                    weir bench -d 30s http://127.0.0.1:8080/hello . To serve your own, write an nginx.conf and \
                    start: weir -c /path/to/nginx.conf";

/// The greeting for a start without a configuration.
pub fn greeting(loops: usize) -> String {
    let pid = std::process::id();
    let plural = if loops == 1 { "" } else { "s" };
    format!(
        "weir {VERSION} serves its built-in configuration, without a file.
  live panel     http://{ADDRESS}/
  status         http://{ADDRESS}/status, http://{ADDRESS}/metrics
  running with   {loops} event loop{plural}, in the foreground, process {pid}
  to stop        Ctrl-C, or kill {pid}
  to serve more  weir -c /path/to/nginx.conf; weir -h tells the rest
"
    )
}

/// Whether another program listens at the address of the built-in configuration.
pub fn is_taken() -> bool {
    TcpListener::bind(ADDRESS).is_err_and(|e| e.kind() == ErrorKind::AddrInUse)
}

/// A message if that address is taken.
pub fn where_else() -> String {
    format!(
        "the built-in configuration needs {ADDRESS}, where another program listens: end that, or name a configuration with -c"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_can_be_read() {
        let tree = InMemory::built_in().tree(Some("worker_processes 2;"));
        assert!(tree.broken.is_none(), "{:?}", tree.broken);
        let names: Vec<_> = tree.main.iter().map(|d| d.name.lossy().into_owned()).collect();
        assert_eq!(names[..3], ["worker_processes", "worker_threads", "daemon"]);
        assert_eq!(names.last().unwrap(), "http");
    }
}
