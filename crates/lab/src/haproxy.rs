//! HAProxy's configuration, which is no nginx.conf. Its workers are the threads of one process, which a master
//! watches.

use crate::program::Setup;

/// The configuration text; `bind` is what follows the address. It logs to standard output.
pub(crate) fn configuration(setup: &Setup, bind: &str, port: u16) -> String {
    let threads = setup.processes * setup.threads;
    let log = if setup.log { "log stdout format raw local0" } else { "" };
    format!(
        "global
    nbthread {threads}
    {log}
defaults
    mode http
    log global
    timeout client 60s
    timeout server 60s
    timeout connect 5s
frontend lab
    bind 127.0.0.1:{port} backlog 4096{bind}
    log-format \"%[thread] %cp %HU\"
    http-request return status 200 content-type text/plain lf-string \"%[thread]\"
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_logs_if_it_is_to() {
        let setup = Setup { processes: 3, log: true, ..Setup::default() };
        let text = configuration(&setup, " shards by-thread", 8080);
        assert!(text.contains("nbthread 3\n"), "{text}");
        assert!(text.contains("bind 127.0.0.1:8080 backlog 4096 shards by-thread\n"), "{text}");
        assert!(text.contains("log stdout"), "{text}");
        assert!(!configuration(&Setup::default(), "", 1).contains("log stdout"));
    }
}
