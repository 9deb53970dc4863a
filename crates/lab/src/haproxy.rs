//! The configuration of HAProxy. Its workers are the threads of one process, which a master
//! watches.

use std::path::Path;

use crate::program::{HandlerWork, ServerSetup};

/// The script that blocks a thread.
pub(crate) const SCRIPT: &str = "work.lua";

/// The configuration text. `bind` follows the address. Access logs go to standard output.
pub(crate) fn configuration(setup: &ServerSetup, bind: &str, dir: &Path, port: u16) -> String {
    let threads = setup.processes * setup.threads;
    let log = if setup.log { "log stdout format raw local0" } else { "" };
    let script = dir.join(SCRIPT);
    // One Lua state per thread: a shared one could stall only one thread at a time. No script may
    // be interrupted, since that would free its thread.
    let (load, work) = match setup.work {
        Some(_) => (
            format!(
                "tune.lua.forced-yield 2000000000\n    lua-load-per-thread {}",
                script.display()
            ),
            "http-request lua.work",
        ),
        None => (String::new(), ""),
    };
    // HAProxy uses the first backend that is available, so those before it are disabled.
    let backend = match setup.events {
        "use poll;" => "noepoll",
        "use select;" => "noepoll\n    nopoll",
        _ => "",
    };
    format!(
        "global
    nbthread {threads}
    {backend}
    {load}
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
    {work}
    http-request return status 200 content-type text/plain lf-string \"%[thread]\"
"
    )
}

/// A Lua script that blocks its thread: it opens a slow file, or counts. The count is calibrated
/// when the script is loaded, while there is only one thread.
pub(crate) fn script(work: HandlerWork, slow_file: &Path) -> String {
    let deed = match work {
        HandlerWork::Sleep(_) | HandlerWork::Either(..) => {
            format!("local file = io.open('{}') if file then file:close() end", slow_file.display())
        }
        HandlerWork::Spin(time) => format!("count({} / each)", time.as_secs_f64()),
    };
    format!(
        "local function count(n) local x = 0 for i = 1, n do x = x + i end return x end
local began = os.clock()
count(1000000)
local each = math.max(os.clock() - began, 1e-6) / 1000000
core.register_action('work', {{ 'http-req' }}, function() {deed} end)
"
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn haproxy_logs_if_wanted() {
        let setup = ServerSetup { processes: 3, log: true, ..ServerSetup::default() };
        let text = configuration(&setup, " shards by-thread", Path::new("/x"), 8080);
        assert!(text.contains("nbthread 3\n"), "{text}");
        assert!(text.contains("bind 127.0.0.1:8080 backlog 4096 shards by-thread\n"), "{text}");
        assert!(text.contains("log stdout"), "{text}");
        let silent = configuration(&ServerSetup::default(), "", Path::new("/x"), 1);
        assert!(!silent.contains("log stdout") && !silent.contains("lua"), "{silent}");
    }

    #[test]
    fn a_script_blocks_a_thread_of_haproxy() {
        let work = HandlerWork::Spin(Duration::from_millis(2));
        let setup =
            ServerSetup { work: Some(work), events: "use select;", ..ServerSetup::default() };
        let text = configuration(&setup, "", Path::new("/x"), 1);
        assert!(text.contains("lua-load-per-thread /x/work.lua\n"), "{text}");
        assert!(
            text.contains("nopoll\n") && text.contains("    http-request lua.work\n"),
            "{text}"
        );
        assert!(script(work, Path::new("/x/slow/file")).contains("count(0.002 / each)"));
        let sleep = script(HandlerWork::Sleep(Duration::from_millis(2)), Path::new("/x/slow/file"));
        assert!(sleep.contains("io.open('/x/slow/file')"), "{sleep}");
    }
}
