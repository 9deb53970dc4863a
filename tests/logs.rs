//! Access logs: no line is lost or torn, whatever happens to the server.

use std::path::Path;

use rustix::process::Signal;
use weir_testkit::{Server, until};

fn server(main: &str, http: &str) -> Server {
    let conf = format!(
        "{main} events {{ }} http {{ log_format line '$uri $arg_n $status';
         server {{ listen 127.0.0.1:%%PORT%%; root %%DIR%%; {http} }} }}"
    );
    Server::start(env!("CARGO_BIN_EXE_weir"), &conf)
}

/// Waits until a log has so many lines.
fn wait_lines(s: &Server, name: &str, lines: usize) -> String {
    let path = s.dir().file(name);
    let read = || std::fs::read_to_string(&path).unwrap_or_default();
    let dir = path.parent().unwrap_or(Path::new("/"));
    assert!(until(dir, || read().lines().count() >= lines), "{name}: {}", read());
    read()
}

#[test]
fn a_line_follows_its_answer() {
    let s = server(
        "",
        "location / { access_log %%DIR%%/a.log line; access_log %%DIR%%/j.log format=json;
             return 200 ok; }
         location /some { access_log %%DIR%%/some.log line if=$arg_log; return 200 ok; }
         location /off { access_log off; return 200 ok; }",
    );
    s.get("/off");
    s.get("/x?n=1");
    assert_eq!(wait_lines(&s, "a.log", 1), "/x 1 200\n");
    let json = wait_lines(&s, "j.log", 1);
    assert!(json.starts_with('{') && json.contains("\"uri\":\"/x?n=1\"") && json.ends_with("}\n"));
    s.get("/some");
    s.get("/some?log=0");
    s.get("/some?log=1");
    assert_eq!(wait_lines(&s, "some.log", 1), "/some - 200\n");
}

#[test]
fn lines_of_a_connection_keep_their_order_and_survive_a_quit() {
    let mut s = server(
        "worker_processes 2; worker_threads 2;",
        "access_log %%DIR%%/a.log line buffer=64k; location / { return 200 ok; }",
    );
    let mut clients: Vec<_> = (0..8).map(|_| s.connect()).collect();
    for n in 0..50 {
        for (c, client) in clients.iter_mut().enumerate() {
            client.send(format!("GET /c{c}?n={n} HTTP/1.1\r\nHost: a\r\n\r\n"));
        }
        for client in &mut clients {
            assert_eq!(client.response().status, 200);
        }
    }
    let path = s.dir().file("a.log");
    s.stop();
    let log = std::fs::read_to_string(&path).unwrap();
    assert_eq!(log.lines().count(), 8 * 50);
    for c in 0..8 {
        let start = format!("/c{c} ");
        let lines: Vec<_> = log.lines().filter(|line| line.starts_with(&start)).collect();
        let expected: Vec<_> = (0..50).map(|n| format!("{start}{n} 200")).collect();
        assert_eq!(lines, expected);
    }
}

#[test]
fn a_reload_loses_no_line_and_usr1_opens_the_file_anew() {
    let s = server("", "access_log %%DIR%%/a.log line; location / { return 200 ok; }");
    s.get("/before");
    s.reload();
    s.get("/after");
    wait_lines(&s, "a.log", 2);
    std::fs::rename(s.dir().file("a.log"), s.dir().file("a.log.1")).unwrap();
    s.signal(Signal::USR1);
    let (dir, fresh) = (s.dir().path(), s.dir().file("a.log"));
    assert!(until(dir, || fresh.exists()));
    s.get("/new");
    let mut all = String::new();
    assert!(until(dir, || {
        all = s.dir().read("a.log.1") + &s.dir().read("a.log");
        all.lines().count() == 3
    }));
    assert_eq!(all, "/before - 200\n/after - 200\n/new - 200\n");
}

#[test]
fn names_may_have_variables() {
    let s = server("", "access_log %%DIR%%/v/of-$arg_f.log line; location / { return 200 ok; }");
    // The worker's user opens these files.
    std::fs::create_dir(s.dir().file("v")).unwrap();
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(s.dir().file("v"), all).unwrap();
    s.get("/?f=one&n=1");
    s.get("/?f=two&n=2");
    s.get("/?f=one&n=3");
    assert_eq!(wait_lines(&s, "v/of-one.log", 2), "/ 1 200\n/ 3 200\n");
    assert_eq!(wait_lines(&s, "v/of-two.log", 1), "/ 2 200\n");
}
