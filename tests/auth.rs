//! Names and passwords.

use rustix::fs::{CWD, FileType, Mode, mknodat};
use weir_testkit::{Dir, Response, Server};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

fn start() -> Server {
    let dir = Dir::new();
    dir.write("users", "ann:{PLAIN}secret\nbob:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n");
    dir.write("root/x", "inside");
    Server::start_in(
        dir,
        WEIR,
        "events { }
         http {
             access_log off;
             server {
                 listen 127.0.0.1:%%PORT%%;
                 root %%DIR%%/root;
                 auth_basic $arg_realm;
                 auth_basic_user_file users;
                 location /any/ { satisfy any; allow all; alias %%DIR%%/root/; }
                 location /none/ { auth_basic_user_file none; }
                 location /pipe/ { auth_basic_user_file pipe; }
                 location /null/ { auth_basic_user_file /dev/null; }
                 location /zero/ { auth_basic_user_file /dev/zero; }
             }
         }",
    )
}

fn ask(server: &Server, path: &str, credentials: &str) -> Response {
    let header = format!("Authorization: Basic {credentials}\r\n");
    server.ask(&format!("GET {path}"), &header, "")
}

const ANN: &str = "YW5uOnNlY3JldA==";
const BOB: &str = "Ym9iOnNlY3JldA==";
const WRONG: &str = "YW5uOndyb25n";
const NOBODY: &str = "emVkOnNlY3JldA==";

#[test]
fn the_right_password_is_let_in() {
    let server = start();
    let r = server.get("/x?realm=home");
    assert_eq!((r.status, r.header("WWW-Authenticate")), (401, Some("Basic realm=\"home\"")));
    assert_eq!(ask(&server, "/x?realm=home", ANN).body(), "inside");
    assert_eq!(ask(&server, "/x?realm=home", BOB).body(), "inside");
    assert_eq!(ask(&server, "/x?realm=home", WRONG).status, 401);
    server.wait_log("user \"ann\": password mismatch, client: 127.0.0.1", 1);
    assert_eq!(ask(&server, "/x?realm=home", NOBODY).status, 401);
    server.wait_log("user \"zed\" was not found in \"", 1);
    assert_eq!(server.get("/x?realm=off").status, 200);
}

/// Two passwords whose hashes take as long as crypt(3) permits, on a pool of two threads.
#[test]
fn slow_passwords_leave_threads_for_files() {
    let dir = Dir::new();
    dir.write("users", "ann:$6$rounds=999999$saltsalt$x\n");
    dir.write("list/x", "");
    let server = Server::start_in(
        dir,
        WEIR,
        "thread_pool default threads=2; worker_processes 1; events { }
         http { log_format path $uri; access_log %%DIR%%/paths path;
             server { listen 127.0.0.1:%%PORT%%; root %%DIR%%;
                 location /list/ { autoindex on; }
                 location /slow { auth_basic x; auth_basic_user_file users; } } }",
    );
    let slow = format!("GET /slow HTTP/1.1\r\nHost: a\r\nAuthorization: Basic {WRONG}\r\n\r\n");
    let mut clients = [server.connect(), server.connect()];
    for client in &mut clients {
        client.send(&slow);
    }
    assert_eq!(server.get("/list/").status, 200);
    assert!(clients.iter_mut().all(|client| client.response().status == 401));
    server.wait_file("paths", "/slow", 2);
    let paths = std::fs::read_to_string(server.dir().file("paths")).unwrap();
    assert_eq!(paths.lines().next(), Some("/list/"), "{paths}");
}

#[test]
fn a_changed_file_counts_at_once() {
    let server = start();
    server.dir().write("users", "ann:{PLAIN}wrong\n");
    assert_eq!(ask(&server, "/x?realm=home", ANN).status, 401);
    assert_eq!(ask(&server, "/x?realm=home", WRONG).status, 200);
}

#[test]
fn other_ways_in_and_missing_files() {
    let server = start();
    let r = server.get("/any/x?realm=home");
    assert_eq!((r.status, r.header("WWW-Authenticate")), (200, None));
    assert_eq!(ask(&server, "/none/x?realm=home", ANN).status, 403);
    server.wait_log("none\" failed (2: No such file or directory)", 1);
}

/// A request does not wait for a writer of the pipe, and takes no memory for all that a device may have.
#[test]
fn a_pipe_and_a_device_have_no_users() {
    let server = start();
    let pipe = server.dir().file("pipe");
    mknodat(CWD, pipe, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
    for path in ["/pipe/x", "/null/x", "/zero/x"] {
        assert_eq!(ask(&server, &format!("{path}?realm=home"), ANN).status, 401, "{path}");
    }
}
