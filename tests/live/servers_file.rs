//! `servers_file`: the servers of a group stand in a file that running workers follow.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode};

use super::*;

fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(&new, path).unwrap();
}

fn servers(ports: &[u16]) -> String {
    ports.iter().map(|port| format!("server 127.0.0.1:{port};\n")).collect()
}

/// A server that says its port.
fn speaking() -> u16 {
    listen(|mut stream| {
        let port = stream.local_addr().unwrap().port().to_string();
        let mut head = [0; 4096];
        while stream.read(&mut head).is_ok_and(|n| n > 0) {
            let length = port.len();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{port}");
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    })
}

/// Twice the number of workers and loops, each on a connection of its own: all that answer.
fn answers(server: &Server, path: &str) -> std::collections::BTreeSet<String> {
    (0..16).map(|_| server.get(path).body()).collect()
}

fn all(ports: &[u16]) -> std::collections::BTreeSet<String> {
    ports.iter().map(u16::to_string).collect()
}

const GROUP: &str = "upstream u { zone u 64k; servers_file %%DIR%%/servers/u; keepalive 4; }";
const PLACE: &str = "location / { proxy_pass http://u; }";

/// A server whose file has these servers, in a directory that all may read.
fn start(group: &str, text: &str) -> Server {
    let dir = Dir::new();
    fs::create_dir(dir.file("servers")).unwrap();
    dir.write("servers/u", text);
    let server = Server::start_in(dir, WEIR, &conf("", group, PLACE));
    // Both workers have read it.
    server.wait_log(" servers now", 2);
    server
}

#[test]
fn running_workers_take_the_servers_that_another_program_writes() {
    let ports: Vec<u16> = (0..3).map(|_| speaking()).collect();
    let server = start(GROUP, &servers(&ports[..1]));
    let (workers, file) = (server.workers(), server.dir().file("servers/u"));
    assert_eq!(answers(&server, "/"), all(&ports[..1]));
    replace(&file, &servers(&ports[1..]));
    assert!(ask_until(|| answers(&server, "/") == all(&ports[1..])), "{}", server.log());
    // Written in place, with weights and a server that is down.
    let text =
        format!("{}server 127.0.0.1:1 down;", servers(&ports[2..]).replace(';', " weight=2;"));
    fs::write(&file, text).unwrap();
    assert!(ask_until(|| answers(&server, "/") == all(&ports[2..])), "{}", server.log());
    // New workers begin with the file.
    server.reload();
    assert_eq!(answers(&server, "/"), all(&ports[2..]));
    assert_ne!(server.workers(), workers);
    replace(&file, &servers(&ports));
    assert!(ask_until(|| answers(&server, "/") == all(&ports)), "{}", server.log());
}

#[test]
fn a_group_keeps_its_servers_where_the_file_is_wrong_or_gone() {
    let port = speaking();
    let server = start(GROUP, &servers(&[port]));
    let file = server.dir().file("servers/u");
    let wrong = [
        ("server 127.0.0.1:1; weight 3;", "u:1"),
        ("\n\nserver localhost:80;", "u:3"),
        ("server 127.0.0.1:80 wait=3;", "u:1"),
        ("server 127.0.0.1:80", "u:1"),
        ("server 127.0.0.1:80; events { }", "u:1"),
    ];
    for (n, (text, place)) in wrong.iter().enumerate() {
        replace(&file, text);
        server.wait_log("keeps its servers", 2 * (n + 1));
        assert!(server.log().lines().any(|line| line.contains(place)), "{text}: {}", server.log());
        assert_eq!(answers(&server, "/"), all(&[port]), "{text}");
    }
    fs::remove_file(&file).unwrap();
    assert_eq!(answers(&server, "/"), all(&[port]));
    // A pipe has no writer.
    let pipe = file.with_extension("new");
    rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
    fs::rename(&pipe, &file).unwrap();
    server.wait_log("is no regular file", 2);
    // None at all is what a file may say.
    replace(&file, "# nothing\n");
    assert!(ask_until(|| server.get("/").status == 502), "{}", server.log());
}

#[test]
fn a_directory_that_comes_back_and_the_links_of_a_config_map_are_followed() {
    let ports: Vec<u16> = (0..3).map(|_| speaking()).collect();
    let server = start(GROUP, &servers(&ports[..1]));
    let dir = server.dir();
    assert_eq!(answers(&server, "/"), all(&ports[..1]));
    fs::remove_dir_all(dir.file("servers")).unwrap();
    server.wait_log("is gone", 2);
    // As Kubernetes mounts a ConfigMap.
    let version = |name: &str, port: u16| {
        fs::create_dir(dir.file(&format!("new/{name}"))).unwrap();
        dir.write(&format!("new/{name}/u"), servers(&[port]));
    };
    fs::create_dir(dir.file("new")).unwrap();
    version("..1", ports[1]);
    symlink("..1", dir.file("new/..data")).unwrap();
    symlink("..data/u", dir.file("new/u")).unwrap();
    fs::rename(dir.file("new"), dir.file("servers")).unwrap();
    assert!(ask_until(|| answers(&server, "/") == all(&ports[1..2])), "{}", server.log());
    fs::create_dir(dir.file("servers/..2")).unwrap();
    dir.write("servers/..2/u", servers(&ports[2..]));
    symlink("..2", dir.file("servers/..data_tmp")).unwrap();
    fs::rename(dir.file("servers/..data_tmp"), dir.file("servers/..data")).unwrap();
    assert!(ask_until(|| answers(&server, "/") == all(&ports[2..])), "{}", server.log());
}

#[test]
fn a_change_of_the_configuration_keeps_files_followed_and_follows_new_ones() {
    let ports: Vec<u16> = (0..3).map(|_| speaking()).collect();
    let server = start(GROUP, &servers(&ports[..1]));
    let (dir, workers) = (server.dir(), server.workers());
    dir.write("servers/v", servers(&ports[1..2]));
    let group = GROUP.replace("%%DIR%%", &dir.path().display().to_string());
    let two = format!(
        "{group} {}",
        group.replace(" u ", " v ").replace("zone v", "zone u").replace("/u", "/v")
    );
    let places = format!("{PLACE} location /v {{ proxy_pass http://v; }}");
    take(&server, &conf("", &two, &places));
    assert_eq!(answers(&server, "/"), all(&ports[..1]));
    assert_eq!(answers(&server, "/v"), all(&ports[1..2]));
    replace(&dir.file("servers/u"), &servers(&ports[2..]));
    replace(&dir.file("servers/v"), &servers(&ports[..1]));
    let moved =
        || answers(&server, "/") == all(&ports[2..]) && answers(&server, "/v") == all(&ports[..1]);
    assert!(ask_until(moved), "{}", server.log());
    // What the file said last outlives a change.
    take(&server, &conf("", &group, PLACE));
    assert_eq!(answers(&server, "/"), all(&ports[2..]));
    assert_eq!(server.workers(), workers);
}

#[test]
fn what_a_configuration_may_not_say() {
    let dir = Dir::new();
    for (group, why) in [
        (
            "upstream u { servers_file f; server 127.0.0.1; }",
            "has both \"server\" and \"servers_file\"",
        ),
        ("upstream u { servers_file f; servers_file g; }", "is duplicate"),
        ("upstream u { servers_file ''; }", "needs the name of a file"),
        ("server { servers_file f; }", "is not allowed here"),
    ] {
        let text = format!("events {{ }} http {{ {group} }}");
        let path = dir.write("wrong.conf", text);
        let said = weir_testkit::run(
            WEIR,
            ["-t", "-c", path.to_str().unwrap()].map(str::to_owned).to_vec(),
        );
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.contains(why), "{group}: {said}");
    }
}

#[test]
fn sessions_go_to_the_servers_of_a_file() {
    let says =
        |word: &'static str| listen(move |mut stream| drop(stream.write_all(word.as_bytes())));
    let (one, two) = (says("one"), says("two"));
    let dir = Dir::new();
    fs::create_dir(dir.file("servers")).unwrap();
    dir.write("servers/u", servers(&[one]));
    let text = "events { } stream { upstream u { servers_file %%DIR%%/servers/u; }
                server { listen 127.0.0.1:%%PORT%%; proxy_pass u; } }";
    let server = Server::start_in(dir, WEIR, text);
    assert_eq!(server.connect().rest(), "one");
    replace(&server.dir().file("servers/u"), &servers(&[two]));
    assert!(ask_until(|| server.connect().rest() == "two"), "{}", server.log());
}
