//! `weir bench`, `weir histogram` and `weir lab`, as whole processes.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use weir_testkit::{Dir, Oracle, Server, dump_page, run};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

const HELLO: &str = "
    events { }
    http { server { listen 127.0.0.1:%%PORT%%; location / { return 200 hello; } } }
";

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs experiments in their short form against this weir alone: what they print.
fn lab(dir: &Dir, names: &[&str]) -> String {
    let (weir, dir) = (format!("weir={WEIR}"), dir.path().display().to_string());
    let mut args = vec!["lab", "run", "--brief", "--server", &weir, "--dir", &dir];
    args.extend(names);
    let output = run(WEIR, &args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    stdout(&output)
}

#[test]
fn the_summary_is_json() {
    let server = Server::start(WEIR, HELLO);
    let url = format!("http://a.a:{}/", server.port());
    let output = run(WEIR, ["bench", "-n", "200", "-c", "4", "--json", "-r", "127.0.0.1", &url]);
    let text = stdout(&output);
    assert!(text.starts_with("{\"requests\": 200, \"errors\": 0, "), "{text}");
    assert!(text.contains("\"statuses\": {\"200\": 200}"), "{text}");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn certificates_are_verified() {
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/testdata");
    let dir = Dir::new();
    for name in ["leaf.pem", "inter.pem", "leaf.key", "root.pem"] {
        dir.write(name, std::fs::read(data.join(name)).unwrap());
    }
    dir.write("chain.pem", dir.read("leaf.pem") + &dir.read("inter.pem"));
    let root = dir.file("root.pem").display().to_string();
    let conf = "events { } http { server { listen 127.0.0.1:%%PORT%% ssl; return 200 hello;
                ssl_certificate chain.pem; ssl_certificate_key leaf.key; } }";
    let server = Server::start_in(dir, WEIR, conf);
    let route = format!("127.0.0.1:{}", server.port());
    for (host, status) in [("www.example.org", 0), ("other.example.org", 1)] {
        let url = format!("https://{host}/");
        let args = ["bench", "-n", "20", "-c", "2", "-r", &route, "--cacert", &root, &url];
        let output = run(WEIR, args);
        assert_eq!(output.status.code(), Some(status), "{}", stdout(&output));
    }
}

#[test]
fn http2_has_several_requests_on_a_connection() {
    let server = Server::start(WEIR, &HELLO.replace("location", "http2 on; location"));
    let url = format!("http://127.0.0.1:{}/", server.port());
    let output =
        run(WEIR, ["bench", "--http2", "-n", "200", "-c", "2", "-m", "10", "--json", &url]);
    let text = stdout(&output);
    assert!(text.starts_with("{\"requests\": 200, \"errors\": 0, "), "{text}");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn raw_lines_make_a_histogram() {
    let server = Server::start(WEIR, HELLO);
    let url = format!("http://127.0.0.1:{}/", server.port());
    let raw = run(WEIR, ["bench", "-n", "50", "-c", "2", "-k", "0", "--raw", &url]);
    assert!(stdout(&raw).lines().all(|line| line.ends_with(" 200")));
    let mut child = Command::new(WEIR)
        .args(["histogram", "-t", "Duration in ms"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&raw.stdout).unwrap();
    let text = stdout(&child.wait_with_output().unwrap());
    assert!(text.lines().next().unwrap().ends_with(" count:50"), "{text}");
    assert!(text.contains("\nDuration in ms:\n value |---"), "{text}");
}

#[test]
fn a_server_that_is_not_there_is_an_error() {
    let route = format!("127.0.0.1:{}", weir_testkit::free_port());
    let output = run(WEIR, ["bench", "-n", "3", "-c", "1", "-r", &route, "http://a.a/"]);
    assert!(stdout(&output).contains("connection refused: 3"), "{}", stdout(&output));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn six_connections_show_the_accept_models() {
    let dir = Dir::new();
    let text = lab(&dir, &["spread"]);
    for line in ["blocking accept: 2 / 2 / 2", "EPOLLEXCLUSIVE: 6 / 0 / 0", "fair: 2 / 2 / 2"] {
        assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
    }
}

#[test]
fn experiments_leave_findings_and_a_page() {
    let dir = Dir::new();
    // Figures mean little here, so that two may run at once.
    let (text, _) = std::thread::scope(|scope| {
        let others = scope.spawn(|| lab(&dir, &["herd", "keepalive", "reload", "shutdown", "sim"]));
        let half = ["queues", "workers", "sharding", "reorder", "blocked", "backends"];
        (lab(&dir, &half), others.join().unwrap())
    });
    assert!(text.contains("Duration in ms (fair):"), "{text}");
    let made = dir.path().display().to_string();
    let report = run(WEIR, ["lab", "report", "--dir", &made]);
    assert!(stdout(&report).contains("report.html: 11 experiments"), "{}", stdout(&report));
    let page = dir.read("report.html");
    assert!(page.contains("<table class=\"dots\">") && !page.contains("src="));
    assert!(page.contains("the article saw") && page.contains("id=\"reload\"><summary><h2>"));
    // The machine and its noise stand on top, once; each experiment is folded.
    assert_eq!(page.matches("<details class=\"experiment\"").count(), 11);
    assert!(page.matches("Noise: ").count() == 1 && page.matches("Short runs").count() == 1);
    let home = page.split("<ul class=\"home\">").nth(1).unwrap().split("</ul>").next().unwrap();
    let sentences = home.matches("<li>").count();
    assert!((3..=5).contains(&sentences) && home.contains("comparisons"), "{home}");
    // Each question has its answer, but one that has no figure.
    assert!(page.matches("<div class=\"answer\">").count() >= 9, "{page}");
    fits(dir);
}

/// Looks at the page in a browser: folded and open, nothing is wider than the screen, and folded it is short.
fn fits(dir: Dir) {
    let frames = [390, 1280, 1920].map(|width| {
        let frame = |open: &str| {
            format!("<iframe src=report.html data-open='{open}' style='width: {width}px'></iframe>")
        };
        frame("") + &frame("yes")
    });
    let script = "onload = () => document.body.append('[' + [...document.querySelectorAll('iframe')].map(frame => {
        const page = frame.contentDocument, shown = page.documentElement;
        if (frame.dataset.open) page.querySelectorAll('details').forEach(part => part.open = true);
        return `${frame.clientWidth} ${shown.scrollWidth - shown.clientWidth} ${shown.scrollHeight}`;
    }).join('|') + ']')";
    dir.write("look.html", format!("{}<script>{script}</script>", frames.join("")));
    let conf = "events { } http { types { text/html html; } server { listen 127.0.0.1:%%PORT%%; root %%DIR%%; } }";
    let server = Server::start_in(dir, WEIR, conf);
    let url = format!("http://127.0.0.1:{}/look.html", server.port());
    let Some(page) = dump_page(&server.dir().file("profile"), &url) else { return };
    let said = page.rsplit_once("</script>").map_or("", |(_, rest)| rest);
    let said = said.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    let (said, _) = said.unwrap_or_else(|| panic!("it measured nothing: {page}"));
    let sizes: Vec<Vec<u32>> = said
        .split('|')
        .map(|frame| frame.split(' ').map(|number| number.parse().unwrap()).collect())
        .collect();
    assert_eq!(sizes.len(), 6, "{said}");
    assert!(sizes.iter().all(|size| size[1] == 0), "it is wider than its frame: {said}");
    let folded = sizes.iter().step_by(2).map(|size| size[2]);
    assert!(folded.max() < Some(4000), "it is long: {said}");
}

#[test]
fn a_stopped_worker_is_steered_around() {
    let text = lab(&Dir::new(), &["steer"]);
    let lost = |way: &str| {
        let beside = format!("one of four stopped, {way}: ");
        let line = text.lines().find(|line| line.starts_with(&beside));
        line.unwrap_or_else(|| panic!("{way} in\n{text}"))
    };
    // However busy the machine is, connections in the queue of a stopped loop have no answer.
    assert!(!lost("reuseport").contains("here 0 of 200 lost"), "{text}");
    assert!(lost("reuseport by load").contains("none") && lost("fair").contains("none"));
    assert!(text.contains("cheap requests, by load"), "{text}");
}

#[test]
fn requests_are_set_beside_the_model() {
    let text = lab(&Dir::new(), &["requests"]);
    for row in ["taken over", "pinned", "the model, taken over", "the model, one queue of requests"]
    {
        let loads = text.lines().filter(|line| line.starts_with(&format!("{row}  ")));
        assert!(loads.filter(|line| line.contains(" 60 % ")).count() == 1, "{row} in\n{text}");
    }
}

#[test]
fn another_servers_slow_worker_is_steered_around() {
    let (nginx, dir) = (Oracle::find(), Dir::new());
    let (weir, dir) = (format!("weir={WEIR}"), dir.path().display().to_string());
    let nginx = nginx.map(|oracle| format!("nginx={}", oracle.path));
    let mut args = vec!["lab", "run", "--brief", "heal", "--dir", &dir, "--server", &weir];
    args.extend(nginx.iter().flat_map(|nginx| ["--server", nginx]));
    let output = run(WEIR, args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = stdout(&output);
    if text.contains("reuseport: not steered. ") {
        assert!(text.contains("run it as root"), "{text}");
        return;
    }
    assert!(text.contains("one worker slow, with weir balance: "), "{text}");
    for time in ["the kernel's hash", "weir balance", "after its end", "after it was killed"] {
        assert!(text.lines().any(|line| line.starts_with(time)), "{time} in\n{text}");
    }
}

#[test]
fn the_walk_is_explained_and_the_model_answers() {
    let walk = stdout(&run(WEIR, ["lab", "sim", "--explain"]));
    assert!(walk.contains("D is put at the head: D, A, B, C"), "{walk}");
    let model = stdout(&run(WEIR, ["lab", "sim", "--model", "--brief", "--workers", "16"]));
    assert!(model.contains("The model alone, 16 workers:"), "{model}");
    assert_eq!(run(WEIR, ["lab", "sim", "--workers", "1"]).status.code(), Some(1));
}

#[test]
fn the_doctor_advises() {
    let dir = Dir::new();
    dir.write("nginx.conf", "worker_processes 2; events { accept_balance exclusive; } http { }");
    let conf = dir.file("nginx.conf").display().to_string();
    let output = run(WEIR, ["lab", "doctor", "--brief", "-c", &conf]);
    let text = stdout(&output);
    assert!(text.contains("\nAdvice for weir: "), "{text}");
    assert!(text.lines().any(|line| line.starts_with("accept_balance exclusive *")), "{text}");
    assert!(text.contains("2 worker processes with 1 loop each."), "{text}");
    let flowing = text.replace('\n', " ");
    assert!(flowing.contains("as accept_balance says (nginx.conf:1): accept_balance exclusive"));
}

#[test]
fn the_doctor_refuses_what_the_server_refuses() {
    let dir = Dir::new();
    dir.write("nginx.conf", "worker_processes 2; events { } http { no_such_thing; }");
    let conf = dir.file("nginx.conf").display().to_string();
    let output = run(WEIR, ["lab", "doctor", "--brief", "-c", &conf]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("weir -t refuses"), "{said}");
    assert!(said.contains("unknown directive \"no_such_thing\""), "{said}");
}

#[test]
fn servers_that_have_no_part_are_refused_with_a_reason() {
    let dir = Dir::new();
    dir.write("nginx.conf", "worker_processes 2; events { } http { }");
    dir.write("other", "#!/bin/sh\necho HAProxy version 3\n");
    let other = dir.file("other");
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (other, conf) = (format!("x={}", other.display()), dir.file("nginx.conf"));
    let conf = conf.display().to_string();
    for (args, why) in [
        (&["doctor", "-c", &conf, "--server", &other][..], "x does not read an nginx.conf"),
        (&["sim", "--server", &other], "x: the model runs weir's policies"),
    ] {
        let output = run(WEIR, [&["lab"], args].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "{said}");
    }
}
