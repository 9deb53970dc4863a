//! What other users of the machine reach: the directories that the server makes, its processes,
//! its files and its port.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use weir_testkit::{Client, Dir, Process, Server, free_port, until};

use super::{DAEMON, WEIR, is_root, theirs};

#[test]
fn directories_are_made_for_their_owner_alone_whatever_the_umask() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    let port = free_port();
    let file = dir.write(
        "nginx.conf",
        format!(
            "daemon off; user daemon; pid {0}/pid; error_log {0}/error.log notice; events {{ }}
             http {{ access_log off; client_body_temp_path {0}/bodies 1 2; proxy_cache_path {0}/cache levels=1:2 keys_zone=zone:64k;
                     server {{ listen 127.0.0.1:{port}; client_body_in_file_only on;
                               location / {{ proxy_pass http://127.0.0.1:{port}/in; proxy_cache zone; proxy_cache_valid 1h; }}
                               location /in {{ client_body_in_file_only off; return 200 x; }} }} }}",
            dir.path().display()
        ),
    );
    let own = dir.file("own/here");
    let start = format!(
        "umask 0; exec {WEIR} -p {} -c {} -e {}",
        own.display(),
        file.display(),
        dir.file("error.log").display()
    );
    let server = Process::start(Command::new("sh").args(["-c", &start]));
    assert!(until(dir.path(), || dir.read("error.log").contains("start worker process ")));
    let about = |path: &Path| {
        let found = fs::metadata(path).unwrap();
        (found.uid(), found.mode() & 0o7777)
    };
    assert_eq!(about(&own), (0, 0o755));
    assert_eq!(about(own.parent().unwrap()), (0, 0o755));
    let mut leaves = 0;
    for entry in fs::read_dir(&own).unwrap() {
        assert_eq!(about(&entry.unwrap().path()), (DAEMON, 0o700));
        leaves += 1;
    }
    assert!(leaves > 3, "{leaves}");
    let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody";
    let mut client = Client::connect(port);
    client.send(post);
    assert_eq!(client.response().status, 200);
    assert_eq!(Client::connect(port).get("/").status, 200);
    for top in ["bodies", "cache"] {
        let below = || -> Option<PathBuf> {
            let entry = |path: PathBuf| Some(fs::read_dir(path).ok()?.next()?.ok()?.path());
            entry(entry(dir.file(top))?)
        };
        assert!(until(dir.path(), || below().is_some()), "{top}");
        let second = below().unwrap();
        for path in [second.parent().unwrap(), &second] {
            assert_eq!(about(path), (DAEMON, 0o700), "{}", path.display());
        }
    }
    drop(server);
}

/// Whether a shell command of this user succeeds.
fn may(user: u32, command: &str) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).uid(user).gid(user).current_dir("/");
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    shell.status().unwrap().success()
}

/// A process of the workers' user has nothing of the master's or of the configuration's; one of another user nothing of the
/// workers' either.
#[test]
fn users_of_the_machine_reach_nothing_of_the_masters() {
    /// The user `bin`, which these workers do not have.
    const OTHER: u32 = 2;
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    theirs(&dir, "theirs");
    let secret = dir.write("key.pem", "secret");
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let server = Server::start_in(
        dir,
        WEIR,
        "user daemon; worker_processes 1; events { }
         http { proxy_cache_path %%DIR%%/theirs/cache keys_zone=zone:64k; client_body_temp_path %%DIR%%/bodies;
                server { listen 127.0.0.1:%%PORT%% reuseport; client_body_in_file_only on;
                         location / { proxy_pass http://127.0.0.1:%%PORT%%/in; proxy_cache zone; proxy_cache_valid 1h; }
                         location /in { return 200 $pid; } } }",
    );
    assert_eq!(server.get("/").status, 200);
    let (master, worker) = (server.pid(), server.workers()[0]);
    let (path, port) = (server.dir().path().display(), server.port());
    let steal = |user| {
        let socket = "import socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)";
        may(user, &format!("python3 -c '{socket}; s.bind((\"127.0.0.1\", {port})); s.listen()'"))
    };
    for user in [DAEMON, OTHER] {
        assert!(may(user, &format!("test -x {path} && test -r /proc/{master}/status")), "{user}");
        for command in [
            format!("cat {path}/key.pem"),
            format!("echo >> {path}/nginx.conf"),
            format!("echo >> {path}/nginx.pid"),
            format!("rm -f {path}/nginx.pid"),
            format!("kill -TERM {master}"),
            format!("cat /proc/{master}/maps"),
            format!("cat /proc/{master}/environ"),
            format!("ls /proc/{master}/fd/"),
            format!("head -c 1 /proc/{master}/mem"),
            format!("{WEIR} -s stop -c {path}/nginx.conf"),
        ] {
            assert!(!may(user, &command), "user {user} may: {command}");
        }
        assert!(!steal(user), "user {user} takes connections of the port");
    }
    for command in [
        format!("kill -TERM {worker}"),
        format!("cat /proc/{worker}/maps"),
        format!("ls /proc/{worker}/fd/"),
        format!("ls {path}/theirs/cache"),
        format!("ls {path}/bodies"),
        format!("echo >> {path}/error.log"),
    ] {
        assert!(!may(OTHER, &command), "another user may: {command}");
    }
    // What a worker has open is what an attacker in it has: of files nothing but logs, which cannot be read.
    for entry in fs::read_dir(format!("/proc/{worker}/fd")).unwrap().flatten() {
        let Ok(file) = fs::metadata(entry.path()) else { continue };
        let (name, target) = (entry.file_name(), fs::read_link(entry.path()).unwrap_or_default());
        let about = fs::read_to_string(format!("/proc/{worker}/fdinfo/{}", name.display()));
        let about = about.unwrap_or_default();
        let flags = about.lines().find_map(|line| line.strip_prefix("flags:")).unwrap_or("0");
        let flags = u32::from_str_radix(flags.trim(), 8).unwrap();
        let is_kernels = target.starts_with("/proc") || target.starts_with("/sys");
        let is_file = file.is_file() && !is_kernels;
        assert!(!is_file || flags & 3 == 1, "{} can be read", target.display());
    }
    assert_eq!(server.get("/in").body(), worker.to_string());
}
