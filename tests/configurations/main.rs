//! Generated configurations. Each is given to nginx and to weir with the same requests. Verdicts of
//! `-t`, answers and lines of the access log must be equal.
//!
//! nginx is `$WEIR_NGINX`, or `nginx` on the path; without one nothing is compared, and the output says so. `WEIR_SEED`
//! is the first seed, `WEIR_CONFIGURATIONS` how many configurations are drawn, `WEIR_REQUESTS` how many requests each gets.

#[path = "../tls/anybody.rs"]
mod anybody;
mod ask;
mod back;
mod drawn;
mod extremes;
mod families;
mod lines;
mod look;
mod more;
#[path = "../tls/secured.rs"]
mod secured;
mod sessions;
mod sweep;
mod times;
mod tree;
mod wire;
mod witness;

use std::path::Path;
use std::process::Command;

use weir_testkit::{Dice, Dir, Oracle, Server, ask_until, number};

use crate::ask::Ask;
use crate::back::Back;
use crate::tree::Tree;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

#[test]
fn generated_configurations_answer_as_with_nginx() {
    let Some(nginx) = Oracle::find() else { return };
    let old = nginx.is_old();
    let back = Back::start();
    let first = number("WEIR_SEED").unwrap_or(1);
    let count = number("WEIR_CONFIGURATIONS").unwrap_or(25);
    let requests = number("WEIR_REQUESTS").unwrap_or(40);
    let mut refused = 0;
    let mut failures = Vec::new();
    for n in first..first + count {
        let mut dice = Dice::new(n);
        let tree = Tree::draw(&mut dice, old);
        let asked: Vec<Ask> = (0..requests).map(|_| Ask::any(&mut dice, old)).collect();
        match compare(&nginx, &tree, &back, &asked) {
            Seen::Same => {}
            Seen::Refused(_) => refused += 1,
            Seen::Differs(what, request) => {
                let few: Vec<Ask> = request.into_iter().collect();
                let (tree, what) = smallest(&nginx, tree, &back, &few, what);
                failures.push(format!("seed {n}: {what}\n{:#?}\n", tree.lines));
                println!("{}", failures[failures.len() - 1]);
                if failures.len() as u64 >= number("WEIR_FAILURES").unwrap_or(5) {
                    break;
                }
            }
        }
    }
    println!(
        "{count} configurations from seed {first} compared with nginx {}, {refused} refused by both",
        nginx.version
    );
    assert!(failures.is_empty(), "{} configurations differ", failures.len());
}

enum Seen {
    Same,
    /// Neither takes the configuration: what nginx says.
    Refused(String),
    /// What differs, and the request that shows it, if it was one.
    Differs(String, Option<Ask>),
}

fn compare(nginx: &Oracle, tree: &Tree, back: &Back, requests: &[Ask]) -> Seen {
    let text = tree.text(&back.address, nginx.minor() < 25);
    let (takes, says) = verdict(&nginx.path, &text);
    if says.contains("unknown directive") {
        return Seen::Refused(says); // An older nginx; that weir knows the others' names is the tables' test.
    }
    let (ours_takes, ours_says) = verdict(WEIR, &text);
    if takes != ours_takes {
        return Seen::Differs(
            format!("nginx -t: {takes}, weir -t: {ours_takes}: {ours_says}"),
            None,
        );
    }
    if !takes {
        if std::env::var_os("WEIR_REFUSED").is_some() {
            println!("{says}{ours_says}");
        }
        return Seen::Refused(says);
    }
    let theirs = Server::start_in(files(), &nginx.path, &text);
    let ours = Server::start_in(files(), WEIR, &text);
    for request in requests {
        let expected = seen(&theirs, back, request);
        let got = seen(&ours, back, request);
        if expected != got {
            return Seen::Differs(
                format!("{request:?}\n-- nginx:\n{expected}\n-- weir:\n{got}\n"),
                Some(request.clone()),
            );
        }
    }
    logs_differ(&theirs, &ours, requests)
}

/// An answer, and what the server behind was asked for it.
fn seen(server: &Server, back: &Back, request: &Ask) -> String {
    drop(back.take());
    let mut text = look::answer(server, request);
    for heard in back.take() {
        text += &format!("\n-- asked:\n{}", look::plain(&heard, server));
    }
    text
}

fn logs_differ(theirs: &Server, ours: &Server, requests: &[Ask]) -> Seen {
    // Lines come after their answers; how many, the configuration says. Another one may come after this look.
    let (mut expected, mut got) = (String::new(), String::new());
    ask_until(|| {
        (expected, got) = (logged(theirs), logged(ours));
        let all = expected.lines().count() >= requests.len() || expected == got;
        all && expected.lines().count() == got.lines().count()
    });
    // One after another is asked, but a line may come after the next answer: their order is no promise.
    if in_order(&expected) == in_order(&got) {
        return Seen::Same;
    }
    let at = expected.lines().zip(got.lines()).position(|(a, b)| a != b);
    let at = at.unwrap_or(expected.lines().count().min(got.lines().count()));
    let line = |text: &str| text.lines().nth(at).unwrap_or("no line").to_owned();
    let what = format!("log line {at}\n-- nginx:\n{}\n-- weir:\n{}\n", line(&expected), line(&got));
    Seen::Differs(what, requests.get(at).cloned())
}

fn in_order(log: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_unstable();
    lines
}

fn logged(server: &Server) -> String {
    // A part of a page with `error_page ... =200`: nginx logs 200, weir what was sent.
    let text = look::plain(&server.dir().read("logs/seen.log"), server);
    // And whether no arguments are none or empty ones is chance after an internal redirect of nginx.
    let text = text.replace("|206|", "|200|").replace("|[-]|", "|[]|");
    // Over HTTP/2 nginx calls an answer complete that has broken off.
    let broken = |line: &str| match line.contains("up=cut") {
        true => line.replace("|OK|", "||"),
        false => line.to_owned(),
    };
    text.lines().map(broken).collect::<Vec<_>>().join("\n")
}

/// Whether a program's `-t` takes a configuration, and what it says.
fn verdict(program: &str, text: &str) -> (bool, String) {
    let dir = files();
    let path = dir.path().display().to_string();
    let text = text.replace("%%PORT%%", "8080").replace("%%PORT1%%", "8081");
    let text = text.replace("%%PORT2%%", "8082").replace("%%DIR%%", &path);
    dir.write("nginx.conf", text);
    let prefix = format!("{path}/");
    let globals = format!("pid {path}/nginx.pid;");
    let said = Command::new(program)
        .args(["-t", "-q", "-p", &prefix, "-c", "nginx.conf", "-e", "error.log", "-g", &globals])
        .output()
        .expect("a program to run");
    (said.status.success(), String::from_utf8_lossy(&said.stderr).into_owned())
}

/// Takes lines away for as long as a difference stays.
fn smallest(
    nginx: &Oracle,
    tree: Tree,
    back: &Back,
    requests: &[Ask],
    what: String,
) -> (Tree, String) {
    let (mut tree, mut what) = (tree, what);
    let mut n = 0;
    while n < tree.lines.len() {
        let less = tree.without(n);
        match compare(nginx, &less, back, requests) {
            Seen::Differs(now, _) => (tree, what) = (less, now),
            _ => n += 1,
        }
    }
    (tree, what)
}

/// A folder with what the generated sites serve.
fn files() -> Dir {
    let dir = Dir::new();
    let long = "0123456789 body <p>a</p>\n".repeat(80);
    for place in ["html", "html/p", "html/p/n", "html/r", "html/i", "html/l", "other", "other/p"] {
        for (name, text) in [
            ("a.html", long.as_str()),
            ("b.txt", "b as text, a body"),
            ("c.json", "{\"a\":1}"),
            ("index.html", "<p>index</p>"),
        ] {
            dir.write(&format!("{place}/{name}"), format!("{text} {place}"));
        }
    }
    dir.write("html/e.txt", "e");
    dir.write(
        "html/p/ssi.html",
        "1<!--# include virtual=\"/e.txt\" -->2<!--# echo var=\"uri\" -->3<!--# bad -->",
    );
    dir.write("html/p/b.txt.gz", packed("packed b"));
    dir.write("users", "u:{PLAIN}p\n");
    for name in ["self.pem", "self.key"] {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata").join(name);
        dir.write(name, std::fs::read(data).expect("a certificate of the tls room"));
    }
    let _ = std::os::unix::fs::symlink("b.txt", dir.file("html/p/link.txt"));
    age(&dir.file("html"));
    age(&dir.file("other"));
    dir
}

fn packed(text: &str) -> Vec<u8> {
    use std::io::Write;
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    let _ = out.write_all(text.as_bytes());
    out.finish().unwrap_or_default()
}

/// One time of change for all, since both servers show it.
fn age(dir: &std::path::Path) {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_600_000_000);
    for entry in std::fs::read_dir(dir).expect("a folder of the test").flatten() {
        let path = entry.path();
        if path.is_dir() {
            age(&path);
        }
        if let Ok(file) = std::fs::File::open(&path) {
            let _ = file.set_modified(time);
        }
    }
}
