//! A program of the operator that publishes and removes records.
//!
//! It runs without a shell, with the user and environment of the workers, in a process group of its own, and begins with
//! no signal blocked or ignored. At its deadline the whole group is killed.

use std::fmt;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::{Change, DnsFailure, TxtRecord};
use crate::stop::Stop;

/// The interval of checks whether the program has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// How long to read the output of processes that outlive the program.
const OUTPUT_GRACE: Duration = Duration::from_millis(500);
/// The most bytes of its output that are kept: the last ones.
const OUTPUT: usize = 1000;
/// `PATH` for the program if the environment has none: the master removes it unless `env PATH;` keeps it.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// `dns_hook PROGRAM [ARGUMENT ...]`
#[derive(Clone)]
pub struct Hook {
    /// The program.
    pub program: PathBuf,
    /// Its first arguments. Those for the record follow them.
    pub arguments: Vec<String>,
    /// `dns_hook_timeout`: it is killed after this.
    pub deadline: Duration,
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Arguments may be secret.
        f.debug_struct("Hook").field("program", &self.program).finish_non_exhaustive()
    }
}

impl Hook {
    /// Runs the program to its end.
    pub fn run(
        &self,
        change: Change,
        record: &TxtRecord,
        stop: &Arc<Stop>,
    ) -> Result<(), DnsFailure> {
        let shown = self.program.display();
        let failed = |e: &io::Error| format!("the dns_hook \"{shown}\" does not run: {e}");
        let (mut child, output) = self.start(change, record).map_err(|e| failed(&e))?;
        let until = Instant::now() + self.deadline;
        let ended = loop {
            match child.try_wait() {
                Ok(Some(status)) => break Ok(status),
                Ok(None) if Instant::now() >= until => {
                    let seconds = self.deadline.as_secs();
                    break Err(DnsFailure::Failed(format!(
                        "the dns_hook \"{shown}\" has not ended within {seconds} s"
                    )));
                }
                Ok(None) => {}
                Err(e) => break Err(DnsFailure::Failed(failed(&e))),
            }
            if let Err(stopped) = stop.wait(CHECK_INTERVAL) {
                break Err(stopped.into());
            }
        };
        let said = match &ended {
            Ok(status) if status.success() => String::new(),
            _ => said(&output),
        };
        end(&mut child);
        match ended {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => {
                let how = how(status);
                Err(DnsFailure::Failed(format!("the dns_hook \"{shown}\" {how}{said}")))
            }
            Err(DnsFailure::Failed(why)) => Err(DnsFailure::Failed(why + &said)),
            Err(stopped) => Err(stopped),
        }
    }

    /// Starts the program. Returns the child, and a channel that yields its output at the end.
    fn start(
        &self,
        change: Change,
        record: &TxtRecord,
    ) -> io::Result<(Child, mpsc::Receiver<Vec<u8>>)> {
        let (mut reader, writer) = io::pipe()?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        command.arg(match change {
            Change::Publish => "present",
            Change::Remove => "cleanup",
        });
        command.arg(format!("{}.", record.name)).arg(&record.value);
        if std::env::var_os("PATH").is_none() {
            command.env("PATH", PATH);
        }
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        command.process_group(0);
        weir_sys::process::with_clean_signals(&mut command);
        let (send, output) = mpsc::channel();
        thread::Builder::new().name("weir: acme hook".to_owned()).spawn(move || {
            let (mut kept, mut buffer) = (Vec::new(), [0; 1024]);
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                kept.extend_from_slice(buffer.get(..n).unwrap_or_default());
                let more = kept.len().saturating_sub(OUTPUT);
                kept.drain(..more);
                // The pipe may stay open for long: sends the output so far with each read.
                let _ = send.send(kept.clone());
            }
        })?;
        let child = command.spawn()?;
        // `command` has this process' writing ends of the pipe. They close here, or on an error.
        Ok((child, output))
    }
}

/// Kills the program's process group and waits for the program.
fn end(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
}

/// How a program ended.
fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

/// The end of the program's output, as one line.
fn said(output: &mpsc::Receiver<Vec<u8>>) -> String {
    let until = Instant::now() + OUTPUT_GRACE;
    let mut last = Vec::new();
    while let Ok(more) = output.recv_timeout(until.saturating_duration_since(Instant::now())) {
        last = more;
    }
    let text = String::from_utf8_lossy(&last);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let text = lines.collect::<Vec<_>>().join("; ").replace(|c: char| c.is_control(), " ");
    if text.is_empty() { text } else { format!(": {text}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::{Mutex, PoisonError};
    use weir_sys::signal::SignalSet;
    use weir_testkit::Dir;

    /// A new process has each file of this one open for a moment, and no program runs that is open to be written.
    static ALONE: Mutex<()> = Mutex::new(());

    fn hook(dir: &Dir, script: &str, deadline: Duration) -> Hook {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let program = dir.write("hook", format!("#!/bin/sh\n{script}\n"));
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        Hook { program, arguments: vec!["a b".to_owned(), "$(id)".to_owned()], deadline }
    }

    fn run(hook: &Hook) -> Result<(), DnsFailure> {
        let record = TxtRecord { name: "_acme-challenge.a.org".to_owned(), value: "-x".to_owned() };
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        hook.run(Change::Publish, &record, &Arc::new(Stop::default()))
    }

    #[test]
    fn arguments_arrive_as_they_are() {
        let dir = Dir::new();
        let out = dir.file("out").display().to_string();
        let script = format!("for a; do echo \"<$a>\"; done > {out}");
        run(&hook(&dir, &script, Duration::from_secs(30))).unwrap();
        let wanted = "<a b>\n<$(id)>\n<present>\n<_acme-challenge.a.org.>\n<-x>\n";
        assert_eq!(dir.read("out"), wanted);
    }

    #[test]
    fn a_hook_of_a_worker_begins_with_no_signal_blocked() {
        let dir = Dir::new();
        // As in each thread of a worker, which reads its signals from a descriptor.
        let blocked = [Signal::TERM, Signal::ALARM, Signal::CHILD].map(Signal::as_raw);
        SignalSet::new(&blocked).block().unwrap();
        let out = dir.file("out").display().to_string();
        let script = format!("grep SigBlk /proc/self/status > {out}");
        run(&hook(&dir, &script, Duration::from_secs(30))).unwrap();
        assert_eq!(dir.read("out"), "SigBlk:\t0000000000000000\n");
    }

    #[test]
    fn a_failure_has_the_last_output_of_the_hook() {
        let dir = Dir::new();
        let script = "seq 100000; echo no such zone >&2; exit 3";
        let why = run(&hook(&dir, script, Duration::from_secs(30))).unwrap_err().to_string();
        assert!(why.contains("hook\" exited with code 3: "), "{why}");
        assert!(why.ends_with("100000; no such zone") && why.len() < 1500, "{why}");
        let missing = Hook { program: dir.file("none"), ..hook(&dir, "", Duration::from_secs(1)) };
        let why = run(&missing).unwrap_err().to_string();
        assert!(why.contains("none\" does not run: No such file"), "{why}");
    }

    #[test]
    fn a_hook_that_hangs_is_killed_with_its_children() {
        let dir = Dir::new();
        let script =
            format!("sleep 1000 & echo $! > {}; echo waits; wait", dir.file("pid").display());
        let why = run(&hook(&dir, &script, Duration::from_millis(500))).unwrap_err().to_string();
        assert!(why.ends_with("has not ended within 0 s: waits"), "{why}");
        let pid = dir.read("pid").trim().to_owned();
        let gone = weir_testkit::ask_until(|| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
            status.is_err() || status.is_ok_and(|text| text.contains("State:\tZ"))
        });
        assert!(gone, "its child {pid} lives");
    }
}
