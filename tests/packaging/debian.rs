//! The Debian package's unit and scripts, run as they are written.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use weir_testkit::{Dir, Process, Server, ask_until, listen, run, until, wait_end};

use super::{WEIR, read};

/// A function of the package's installation with these words. Programs in `dir` come first, and the state of systemd's helper is there.
fn shell(function: &str, words: &[&str], dir: &Path) -> Output {
    let script = read("packaging/debian/postinst");
    let of = |name: &str| {
        let body = &script[script.find(&format!("\n{name}() {{")).expect("the function")..];
        body[..body.find("\n}\n").expect("its end") + 3].to_owned()
    };
    let text =
        format!("PATH=\"$0:$PATH\"\n{}\n{}\n{function} \"$@\"", of("nginx_is_here"), of(function));
    let text = ["/var/lib/systemd/", "/run/systemd/"]
        .into_iter()
        .fold(text, |text, place| text.replace(place, &format!("{}{place}", dir.display())));
    run("sh", [&["-ec", &text, dir.to_str().unwrap()], words].concat())
}

/// What the package's installation does with a directory.
fn installed(function: &str, dir: &Path) -> bool {
    shell(function, &[dir.to_str().unwrap()], Path::new("/nowhere")).status.success()
}

/// A line of the unit, for a server of a test instead of the machine's.
fn line(key: &str, n: usize, server: &Server) -> Command {
    let unit = read("packaging/debian/weir.service");
    let all = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let line = all.map(|line| line.trim_start_matches('-')).nth(n).expect("the line");
    let dir = server.dir().path().display();
    let line = line
        .replace(
            "/usr/sbin/weir $WEIR_OPTIONS",
            &format!("{WEIR} -p {dir}/ -c nginx.conf -e error.log"),
        )
        .replace(
            "daemon on; master_process on;",
            &format!("pid {dir}/nginx.pid; error_log {dir}/error.log debug;"),
        )
        .replace("/run/nginx.pid", &format!("{dir}/nginx.pid"));
    let mut command = Command::new("sh");
    command.args(["-c", &line]).env("MAINPID", server.pid().to_string());
    command
}

/// A server with `/held`, whose request comes by the first channel and is answered after a word by the second.
fn holding() -> (Server, Receiver<()>, Sender<()>) {
    let (asked, is_asked) = channel();
    let (go, may_go) = channel();
    let may_go = Mutex::new(may_go);
    let behind = listen(move |mut stream| {
        let _ = asked.send(());
        let _ = may_go.lock().unwrap().recv();
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone");
    });
    let held = format!("location /held {{ proxy_pass http://127.0.0.1:{behind}; }}");
    (Server::with_locations(Dir::new(), WEIR, "", &held), is_asked, go)
}

#[test]
fn a_stop_of_the_unit_waits_for_requests_in_progress() {
    let is_here = run("sh", ["-c", "command -v start-stop-daemon"]).status.success();
    if !rustix::process::geteuid().is_root() || !is_here {
        return println!("not run: it needs root and Debian's start-stop-daemon");
    }
    let (mut server, is_asked, go) = holding();
    let mut client = server.connect();
    let asking = thread::spawn(move || client.get("/held"));
    is_asked.recv().unwrap();
    let mut stop = Process::start(&mut line("ExecStop", 0, &server));
    server.wait_log("gracefully shutting down", 1);
    // The answer ends the server, whose process is there until it is waited for.
    assert!(stop.is_running(), "systemd would send TERM now");
    go.send(()).unwrap();
    assert_eq!(asking.join().unwrap().body(), "done");
    assert!(server.wait().success());
    assert!(stop.wait().success());
}

#[test]
fn a_reload_of_the_unit_is_for_the_program_that_an_upgrade_has_started() {
    let (server, is_asked, go) = holding();
    let mut client = server.connect();
    let asking = thread::spawn(move || client.get("/held"));
    is_asked.recv().unwrap();
    let (old, pid) = (server.pid(), || server.dir().read("nginx.pid").trim().to_owned());
    server.signal(Signal::USR2);
    assert!(until(server.dir().path(), || !["", &old.to_string()].contains(&&*pid())));
    let new = Pid::from_raw(pid().parse().unwrap()).unwrap();
    server.wait_log("start worker process ", 2);
    server.signal(Signal::QUIT);
    server.wait_log("gracefully shutting down", 1);

    // The old one is still there for its request.
    server.configure("events { } http { server { listen 127.0.0.1:%%PORT%%; return 200 new; } }");
    for n in 0..2 {
        assert!(line("ExecReload", n, &server).status().unwrap().success());
    }
    let is_new = ask_until(|| server.get("/").body() == "new");
    go.send(()).unwrap();
    assert_eq!(asking.join().unwrap().body(), "done");
    kill_process(new, Signal::QUIT).unwrap();
    wait_end(new.as_raw_nonzero().get());
    assert!(is_new, "the old configuration is served");
}

/// What a function of the package's installation has done on a machine where these calls of systemd's tools fail.
fn done(function: &str, words: &[&str], failing: &[&str], here: &[&str]) -> String {
    let dir = Dir::new();
    dir.write("failing", failing.join("\n") + "\n");
    let tool = "#!/bin/sh\ncall=\"${0##*/} $*\"\necho \"$call\" >> \"${0%/*}/calls\"\n! grep -qxF \"$call\" \"${0%/*}/failing\"\n";
    for name in ["systemctl", "deb-systemd-helper", "deb-systemd-invoke", "take_over"] {
        let path = dir.write(name, tool);
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    for file in here {
        dir.write(file, "");
    }
    let said = shell(function, words, dir.path());
    // No failure of the unit makes one of the installation.
    assert!(said.status.success(), "{failing:?}: {said:?}");
    let calls = dir.read("calls");
    let effects =
        calls.lines().filter(|call| !call.contains("--quiet") && !call.contains("update-state"));
    let told = String::from_utf8(said.stdout).unwrap();
    effects.chain(told.lines()).collect::<Vec<_>>().join("; ")
}

const SYSTEMD_RUNS: &str = "run/systemd/system/nginx.service";
const STATE: &str = "var/lib/systemd/deb-systemd-helper-enabled/weir.service.dsh-also";
const NGINX_SERVES: &str = "systemctl --quiet is-active nginx.service";
const NGINX_WILL: &str = "systemctl --quiet is-enabled nginx.service";
const WEIR_SERVES: &str = "systemctl --quiet is-active weir.service";
const WAS_ENABLED: &str = "deb-systemd-helper --quiet was-enabled weir.service";
const ENABLE: &str = "deb-systemd-helper enable weir.service";

#[test]
fn the_package_enables_its_unit_once_and_not_beside_nginx() {
    let first = |failing: &[&str], here: &[&str]| done("enable_unit", &[""], failing, here);
    let told = first(&[NGINX_WILL], &[SYSTEMD_RUNS]);
    assert!(told.starts_with("weir: nginx serves. To put weir in its place: "), "{told}");
    assert_eq!(first(&[NGINX_SERVES], &[SYSTEMD_RUNS]), told);
    assert_eq!(first(&[NGINX_SERVES, NGINX_WILL], &[SYSTEMD_RUNS]), ENABLE);
    // In the directory of an image, systemctl has no unit to ask.
    assert_eq!(first(&[], &[]), told);
    assert_eq!(first(&[NGINX_WILL], &[]), ENABLE);
    // An upgrade, and an installation after a removal, find the state of before, of this or of an earlier version.
    let later = |failing: &[&str], here: &[&str]| done("enable_unit", &["0.1.0-1"], failing, here);
    assert_eq!(later(&[], &[STATE]), ENABLE);
    assert_eq!(later(&[WAS_ENABLED], &[STATE]), "");
    assert_eq!(later(&[], &[]), "");
}

#[test]
fn an_upgrade_of_the_package_ends_no_server_that_the_configuration_would_not_start() {
    assert_eq!(done("serve", &[], &[], &[]), "take_over ");
    let (reload, restart) = ("systemctl reload weir.service", "systemctl restart weir.service");
    let renewed = done("serve", &[], &["take_over "], &[]);
    assert_eq!(renewed, format!("take_over ; {reload}; {restart}"));
    let kept = done("serve", &[], &["take_over ", reload], &[]);
    let told = kept.strip_prefix(&format!("take_over ; {reload}; ")).expect("no restart");
    assert!(told.starts_with("weir: the earlier program serves on."), "{told}");
    // One that does not run starts where its unit is enabled, unless nginx serves.
    assert_eq!(done("serve", &[], &[WEIR_SERVES], &[]), "");
    let start = "deb-systemd-invoke start weir.service";
    assert_eq!(done("serve", &[], &[WEIR_SERVES, NGINX_SERVES], &[]), start);
    let failed = done("serve", &[], &[WEIR_SERVES, NGINX_SERVES, start], &[]);
    assert!(failed.ends_with("weir: it does not start; journalctl -u weir says why"), "{failed}");
}

#[test]
fn the_package_keeps_directories_from_the_workers_user() {
    let here = |what: &str, name: &str| run("getent", [what, name]).status.success();
    if !rustix::process::geteuid().is_root() || !here("passwd", "www-data") || !here("group", "adm")
    {
        return println!("not run: it needs root and Debian's users");
    }
    let id = |file: &str, name: &str| -> u32 {
        let text = fs::read_to_string(file).unwrap();
        let line = text.lines().find(|line| line.starts_with(&format!("{name}:"))).unwrap();
        line.split(':').nth(2).unwrap().parse().unwrap()
    };
    let (www, adm) = (id("/etc/passwd", "www-data"), id("/etc/group", "adm"));
    let about = |path: &Path| {
        let found = fs::symlink_metadata(path).unwrap();
        (found.uid(), found.gid(), found.mode() & 0o7777)
    };
    let dir = Dir::new();
    let secret = dir.write("secret", "root's");
    let before = about(&secret);

    // A new one, and then the directory of an earlier version, with what could be in it.
    let logs = dir.file("log/weir");
    assert!(installed("own_logs", &logs));
    for name in ["access.log", "error.log"] {
        assert_eq!(about(&logs.join(name)), (www, adm, 0o640), "{name}");
        fs::remove_file(logs.join(name)).unwrap();
    }
    lchown(&logs, Some(www), None).unwrap();
    fs::write(logs.join("error.log.1"), "old\n").unwrap();
    symlink(&secret, logs.join("access.log")).unwrap();
    lchown(logs.join("access.log"), Some(www), None).unwrap();
    fs::hard_link(&secret, logs.join("error.log")).unwrap();
    symlink("error.log.1", logs.join("root-s.log")).unwrap();
    assert!(installed("own_logs", &logs));
    assert_eq!(about(&logs), (0, adm, 0o755));
    for name in ["access.log", "error.log"] {
        assert_eq!(about(&logs.join(name)), (www, adm, 0o640), "{name}");
    }
    assert!(logs.join("error.log.1").is_file() && logs.join("root-s.log").is_symlink());
    // What was logged stays.
    fs::write(logs.join("access.log"), "line\n").unwrap();
    assert!(installed("own_logs", &logs));
    assert_eq!(fs::read_to_string(logs.join("access.log")).unwrap(), "line\n");

    let state = dir.file("lib/weir");
    assert!(installed("own_state", &state));
    fs::create_dir(state.join("proxy_temp")).unwrap();
    symlink(dir.path(), state.join("fastcgi_temp")).unwrap();
    lchown(state.join("fastcgi_temp"), Some(www), None).unwrap();
    for open in [&state, &state.join("proxy_temp")] {
        fs::set_permissions(open, Permissions::from_mode(0o777)).unwrap();
    }
    assert!(installed("own_state", &state));
    assert_eq!(about(&state), (0, 0, 0o755));
    assert_eq!(about(&state.join("proxy_temp")), (0, 0, 0o700));
    assert!(!state.join("fastcgi_temp").is_symlink());

    assert_eq!((about(&secret), dir.read("secret")), (before, "root's".into()));
    // Logs that are rotated, and a service without the package's script, come to the same.
    assert!(read("packaging/debian/weir.logrotate").contains("create 0640 www-data adm"));
    let unit = read("packaging/debian/weir.service");
    assert!(unit.contains("StateDirectory=weir\nStateDirectoryMode=0755\n"));
}

#[test]
fn the_package_has_a_page_of_the_manual_for_each_tool() {
    let build = read("packaging/build");
    let names = build.lines().find_map(|line| line.strip_prefix("\"$weir\" -h 2>&1 | "));
    let names = names.and_then(|rest| rest.split(" | ").next()).expect("how names are found");
    let found = run("sh", ["-c", &format!("\"$0\" -h 2>&1 | {names}"), WEIR]);
    let said = String::from_utf8(run(WEIR, ["-V"]).stderr).unwrap();
    let tools = said.lines().find_map(|line| line.strip_prefix("tools: ")).expect("the tools");
    let found = String::from_utf8(found.stdout).unwrap();
    assert_eq!(found.lines().collect::<Vec<_>>(), tools.split(' ').collect::<Vec<_>>());
}

/// Debian's directories `/bin`, `/lib` and `/sbin` are links into `/usr`.
#[test]
fn the_package_has_no_file_behind_a_link_of_the_system() {
    let manifest = read("crates/weir/Cargo.toml");
    let assets = manifest.split_once("\nassets = [\n").and_then(|(_, rest)| rest.split_once("\n]"));
    let places = assets.expect("assets").0.lines().filter_map(|line| line.split('"').nth(3));
    let places: Vec<&str> = places.collect();
    assert!(places.contains(&"usr/lib/systemd/system/"), "{places:?}");
    for link in ["bin/", "lib/", "sbin/"] {
        assert!(!places.iter().any(|place| place.starts_with(link)), "{places:?}");
    }
}
