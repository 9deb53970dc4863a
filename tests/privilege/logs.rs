//! Logs at paths that root has made links, pipes and devices, and logs in directories that workers
//! may change.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use weir_testkit::{Client, Dir, PATIENCE, Process, Server, free_port, run, until};

use super::{WEIR, is_root, theirs};

#[test]
fn links_pipes_and_devices_that_root_has_put_are_logs() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    theirs(&dir, "theirs");
    symlink("/dev/stdout", dir.file("theirs/out.log")).unwrap();
    fs::create_dir(dir.file("real")).unwrap();
    symlink("real", dir.file("by-name")).unwrap();
    symlink("../real/access.log", dir.file("real/latest.log")).unwrap();
    let pipe = dir.file("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::empty(), 0).unwrap();
    fs::set_permissions(&pipe, Permissions::from_mode(0o666)).unwrap();
    let port = free_port();
    let conf = format!(
        "daemon off; user daemon; pid {0}/pid; error_log {0}/error.log notice; events {{ }}
         http {{ log_format f '$uri'; access_log {0}/theirs/out.log f; access_log {0}/by-name/latest.log f; access_log {0}/pipe f;
                 access_log /dev/null f; server {{ listen 127.0.0.1:{port}; location / {{ return 200 x; }} }} }}",
        dir.path().display()
    );
    let file = dir.write("nginx.conf", conf);
    let mut command = Command::new(WEIR);
    command.arg("-c").arg(&file).arg("-e").arg(dir.file("error.log"));
    // The reader of a pipe opens it first.
    let (path, (tell, lines)) = (pipe.clone(), std::sync::mpsc::channel());
    std::thread::spawn(move || {
        let lines =
            BufReader::new(File::options().read(true).write(true).open(path).unwrap()).lines();
        tell.send(String::new()).unwrap();
        lines.map_while(Result::ok).take(2).for_each(|line| tell.send(line).unwrap());
    });
    lines.recv_timeout(PATIENCE).unwrap();
    // As in a container; where it leads to a plain file, the link is refused, since the file would be given away.
    let (out, output) = std::io::pipe().unwrap();
    let stdout = dir.file("stdout");
    let mut refused = Process::start(command.stdout(File::create(&stdout).unwrap()));
    assert!(!refused.wait().success());
    assert_eq!((fs::read(&stdout).unwrap(), fs::metadata(&stdout).unwrap().uid()), (vec![], 0));
    let server = Process::start(command.stdout(output));
    drop(command);
    assert!(until(dir.path(), || dir.read("error.log").contains("start worker process ")));
    let get = |path: &str| Client::connect(port).get(path).status;
    assert_eq!(get("/first"), 200);
    assert_eq!(lines.recv_timeout(PATIENCE).unwrap(), "/first");
    server.signal(Signal::USR1);
    // The master and the worker.
    let reopened = || dir.read("error.log").matches(": reopening logs").count() == 2;
    assert!(until(dir.path(), reopened));
    assert_eq!(get("/second"), 200);
    assert_eq!(lines.recv_timeout(PATIENCE).unwrap(), "/second");
    let mut written = BufReader::new(out).lines();
    for line in ["/first", "/second"] {
        assert_eq!(written.next().unwrap().unwrap(), line);
    }
    let kept = || dir.read("real/access.log") == "/first\n/second\n";
    assert!(until(dir.path(), kept), "{}", dir.read("error.log"));
    // The workers may not open the master's standard output anew, and go on with what they have.
    let (log, master) = (dir.read("error.log"), format!(" {0}#{0}: ", server.pid()));
    let failed = log.lines().filter(|line| line.contains("failed") && line.contains(&master));
    assert_eq!(failed.count(), 0, "{log}");
}

#[test]
fn a_pipe_without_a_reader_does_not_stop_the_start() {
    let dir = Dir::new();
    let pipe = dir.file("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::empty(), 0).unwrap();
    fs::set_permissions(&pipe, Permissions::from_mode(0o666)).unwrap();
    let server = Server::start_in(
        dir,
        WEIR,
        "error_log %%DIR%%/error.log notice; events { }
         http { log_format f '$uri'; access_log %%DIR%%/pipe f; server { listen 127.0.0.1:%%PORT%%; return 200 x; } }",
    );
    assert_eq!(server.get("/dropped").status, 200);
    server.wait_log("has no reader, its lines are dropped until the logs are reopened", 1);
    // Both ends, so that the open does not wait.
    let reader = File::options().read(true).write(true).open(&pipe).unwrap();
    let worker = server.workers()[0];
    server.signal(Signal::USR1);
    server.wait_log(&format!("{worker}#{worker}: reopening logs"), 1);
    assert_eq!(server.get("/kept").status, 200);
    assert_eq!(BufReader::new(reader).lines().next().unwrap().unwrap(), "/kept");
}

#[test]
fn a_log_directory_that_workers_may_change_is_warned_of() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    theirs(&dir, "theirs");
    fs::create_dir(dir.file("ours")).unwrap();
    let conf = |user: &str| {
        format!(
            "user {user}; pid {0}/pid; error_log {0}/ours/error.log; events {{ }} http {{ access_log {0}/theirs/access.log; }}",
            dir.path().display()
        )
    };
    let warned = |user: &str| {
        let file = dir.write("nginx.conf", conf(user));
        let out = run(
            WEIR,
            [
                "-t",
                "-q",
                "-p",
                dir.path().to_str().unwrap(),
                "-c",
                file.to_str().unwrap(),
                "-e",
                "stderr",
            ],
        );
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{said}");
        said.matches("[warn]").count()
    };
    assert_eq!((warned("daemon"), warned("bin")), (1, 0));
    fs::set_permissions(dir.file("ours"), Permissions::from_mode(0o777)).unwrap();
    assert_eq!((warned("daemon"), warned("bin")), (2, 1));
}
