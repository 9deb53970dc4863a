//! The command line: versions, options, tools, the manual, and shell completion.
//!
//! A server alone has tests of its own here: `cargo test -p weir --no-default-features --test command_line`, also with
//! `--features manual`.

use std::collections::HashMap;
use std::path::Path;
use std::process::Output;
#[cfg(feature = "tools")]
use std::process::{Command, Stdio};

#[cfg(feature = "tools")]
use rustix::process::Signal;

use weir_testkit::{Dir, certified, examples, free_port, run};
#[cfg(feature = "tools")]
use weir_testkit::{Process, Server};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn versions_are_for_people_and_for_tools() {
    let text = stderr(&run(WEIR, ["-v"]));
    assert!(text.starts_with("weir version: weir/") && text.contains("\nnginx version: nginx/1."));
    let text = stderr(&run(WEIR, ["-V"]));
    assert!(text.contains("\nconfigure arguments: --prefix="));
    let text = stderr(&run(WEIR, ["-p", "/srv/w", "-V"]));
    assert!(text.contains(" --conf-path=/srv/w/conf/nginx.conf "), "{text}");
    let geo = " --with-http_geoip_module --add-module=ngx_http_geoip2_module";
    let others = " --add-module=ngx_cache_purge --add-module=ngx_brotli --add-module=nginx-acme";
    for word in [geo, others].iter().flat_map(|words| words.split_whitespace()) {
        assert!(text.contains(&format!(" {word} ")), "{word}: {text}");
    }
    let tools = match cfg!(feature = "manual") {
        true => tools().join(" "),
        false => "none".to_owned(),
    };
    assert!(text.ends_with(&format!("\ntools: {tools}\n")), "{text}");
    for word in ["-h", "-?", "--help", "help"] {
        let text = stderr(&run(WEIR, [word]));
        assert!(text.contains("Usage: weir "), "{text}");
        assert_eq!(text.contains("\n  weir bench "), cfg!(feature = "tools"), "{text}");
    }
    assert!(stderr(&run(WEIR, ["--version"])).starts_with("weir version: weir/"));
    let out = run(WEIR, ["-x"]);
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(stderr(&out), "weir: invalid option: \"x\"\n");
    let text = stderr(&run(WEIR, ["bnech"]));
    assert!(text.starts_with("weir: invalid option: \"bnech\""), "{text}");
    assert_eq!(text.contains("did you mean \"bench\"?"), cfg!(feature = "tools"), "{text}");
    assert_eq!(stderr(&run(WEIR, ["serve"])), "weir: invalid option: \"serve\"\n");
}

/// The tools that `-h` names.
fn tools() -> Vec<String> {
    let help = stderr(&run(WEIR, ["-h"]));
    let named = help.lines().filter_map(|line| line.strip_prefix("  weir "));
    named.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

/// A script or a habit that calls a tool learns where it is, and not that its name is no option.
#[cfg(not(feature = "tools"))]
#[test]
fn a_server_alone_says_where_its_tools_are() {
    assert_eq!(tools().is_empty(), !cfg!(feature = "manual"));
    for tool in ["balance", "bench", "explain", "histogram", "inspect", "lab", "lint", "top"] {
        let out = run(WEIR, [tool, "--help"]);
        assert_eq!(out.status.code(), Some(1), "{tool}");
        let text = stderr(&out);
        let names = text.starts_with("weir: this weir was built without its tools; ");
        assert!(names && text.contains(&format!("\"weir {tool}\"")), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[cfg(feature = "manual")]
#[test]
fn each_tool_tells_its_options_and_has_a_page_of_the_manual() {
    let said = |args: &[&str]| String::from_utf8(run(WEIR, args).stdout).unwrap();
    let tools = tools();
    assert!(tools.len() >= if cfg!(feature = "tools") { 8 } else { 2 }, "{tools:?}");
    for tool in &tools {
        let text = said(&[tool, "--help"]);
        assert!(text.contains(&format!("Usage: weir {tool}")), "{text}");
        let page = said(&["manual", tool]);
        assert!(page.contains(&format!(".TH weir-{tool} 1")), "{page}");
    }
    let page = said(&["manual"]);
    assert!(page.contains(".TH weir 8"), "{page}");
    for tool in &tools {
        assert!(page.replace("\\-", "-").contains(&format!("weir-{tool}(1)")), "{tool}: {page}");
    }
    let synopsis = |page: &str| page.replace("\\-", "-").split(".SH").nth(2).unwrap().to_owned();
    let server = synopsis(&page);
    for word in ["[-t]", "[-s stop|quit|reopen|reload]", "[-c filename]", "[--demo]"] {
        assert!(server.contains(word), "{word}: {server}");
    }
    let text = page.replace("\\-", "-");
    for words in ["[default: /usr/share/nginx/]", "[default: /etc/nginx/nginx.conf", ".SH FILES"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(text.contains(".SH \"EXIT STATUS\""), "{text}");
    if cfg!(feature = "tools") {
        let lint = synopsis(&said(&["manual", "lint"]));
        assert!(lint.contains("[-p PREFIX] [--allow RULE,...]... [--list]"), "{lint}");
        let bench = synopsis(&said(&["manual", "bench"]));
        assert!(bench.contains("[-n|--requests N]") && bench.contains("[URL]..."), "{bench}");
    }
    let none = run(WEIR, ["manual", "nothing"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(stderr(&none).contains("no tool \"nothing\""));
}

#[cfg(feature = "manual")]
#[test]
fn a_shell_completes_options_and_tools() {
    let script = run(WEIR, ["completions", "bash"]).stdout;
    let complete = |words: &str, at: usize| {
        let mut text = String::from_utf8(script.clone()).unwrap();
        text += &format!("\nCOMP_WORDS=({words}); COMP_CWORD={at}\n");
        text += "last=\"${COMP_WORDS[COMP_CWORD]}\"; _weir weir \"$last\" \"${COMP_WORDS[COMP_CWORD-1]}\"\n";
        text += "echo \"${COMPREPLY[@]}\"\n";
        let out = run("bash", ["-c", &text]);
        assert!(out.status.success(), "{}", stderr(&out));
        String::from_utf8(out.stdout).unwrap()
    };
    let all = complete("weir ''", 1);
    for tool in tools() {
        assert!(all.split_whitespace().any(|word| word == tool), "{tool}: {all}");
    }
    assert_eq!(complete("weir -s re", 2), "reopen reload\n");
    if cfg!(feature = "tools") {
        assert_eq!(complete("weir ben", 1), "bench\n");
        assert_eq!(complete("weir bench --conne", 2), "--connections --connect-first\n");
    }
}

#[test]
fn the_prefix_may_be_the_working_directory() {
    let dir = Dir::new();
    dir.write("conf", "events { } http { server { listen unix:socket; } }");
    let mut command = std::process::Command::new(WEIR);
    command.args(["-t", "-e", "stderr", "-p", ".", "-c", "conf"]).current_dir(dir.path());
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", stderr(&out));
}

/// The configurations of the pages, but for those that need more certificates, databases or a word of prose: other tests
/// serve these.
#[test]
fn examples_are_accepted_without_a_warning() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let certificates = certified();
    let mut count = 0;
    for entry in std::fs::read_dir(docs).unwrap() {
        let path = entry.unwrap().path();
        let page = path.file_name().unwrap().to_str().unwrap();
        if !page.ends_with(".md")
            || ["app.md", "http3.md", "modules.md", "stream.md", "tls.md"].contains(&page)
        {
            continue;
        }
        for example in examples(&std::fs::read_to_string(&path).unwrap()) {
            let dir = Dir::new();
            for name in ["fastcgi_params", "uwsgi_params"] {
                dir.write(name, "");
            }
            for (name, from) in [("cert.pem", "chain.pem"), ("cert.key", "leaf.key")] {
                dir.write(name, certificates.read(from));
            }
            let conf = dir.write("conf", whole(example, dir.path()));
            let prefix = dir.path().to_str().unwrap().to_owned();
            let args = ["-t", "-e", "stderr", "-p", &prefix, "-c", conf.to_str().unwrap()];
            let out = run(WEIR, args);
            let said = stderr(&out);
            assert!(out.status.success() && !said.contains("[warn]"), "{page}: {example}{said}");
            count += 1;
        }
    }
    assert!(count > 25, "{count}");
}

/// An example with the blocks around it that it leaves out, on free ports, and with its files in `dir`.
fn whole(example: &str, dir: &Path) -> String {
    let begins = |words: &[&str]| {
        let mut first = example.lines().filter_map(|line| line.split(' ').next());
        first.any(|word| words.contains(&word))
    };
    let events = if begins(&["events"]) { "" } else { "events { } " };
    let text = if begins(&["events", "http", "stream", "worker_processes"]) {
        format!("{events}{example}")
    } else if begins(&["server", "upstream", "limit_req_zone"]) {
        format!("{events}http {{ {example} }}")
    } else {
        format!("{events}http {{ server {{ listen 8080; {example} }} }}")
    };
    let mut ports = HashMap::new();
    let mut parts = text.split("listen ");
    let mut out = parts.next().unwrap().to_owned();
    for part in parts {
        let end = part.find([';', ' ']).unwrap();
        let (address, rest) = part.split_at(end);
        let port = address.rsplit(':').next().unwrap();
        out += "listen ";
        match port.parse::<u16>() {
            Ok(port) => {
                out += &format!("127.0.0.1:{}", ports.entry(port).or_insert_with(free_port));
            }
            Err(_) => out += address,
        }
        out += rest;
    }
    let dir = dir.display().to_string();
    ["/var/log/nginx", "/var/cache/weir", "/run/weir", "/run"]
        .iter()
        .fold(out, |out, at| out.replace(at, &dir))
}

/// A tool whose reader has gone ends in silence, and says why where the disk is full.
#[cfg(feature = "tools")]
#[test]
fn tools_that_cannot_print_say_so() {
    let dir = Dir::new();
    let conf = dir.write("nginx.conf", "events { } http { server { listen 127.0.0.1:81; } }");
    let conf = conf.to_str().unwrap();
    let server = Server::start(
        WEIR,
        "events { } http { server { listen 127.0.0.1:%%PORT%%;
             location / { return 200 x; } location /panel { weir_dashboard; } } }",
    );
    let url = format!("http://127.0.0.1:{}/", server.port());
    let panel = format!("{url}panel");
    let port = server.port().to_string();
    let state = dir.file("state");
    for (args, failed) in [
        (vec!["lab", "list"], 1),
        (vec!["lab", "sim", "--explain"], 1),
        (vec!["lint", "--list"], 2),
        (vec!["lint", "-c", conf], 2),
        (vec!["histogram"], 1),
        (vec!["manual"], 1),
        (vec!["completions", "bash"], 1),
        (vec!["proxy", "3000", "--show-config"], 1),
        (vec!["explain", "http://a:81/", "-c", conf], 1),
        (vec!["inspect", &port, "--secs", "0"], 1),
        (vec!["top", &panel, "--once", "--interval", "0.1"], 1),
        (vec!["bench", "-n", "1", "-c", "1", &url], 2),
        (vec!["bench", "-n", "1", "-c", "1", "--json", &url], 2),
        (vec!["bench", "--help"], 1),
    ] {
        let run = |out: Stdio| {
            let mut command = Command::new(WEIR);
            command.args(&args).env("XDG_STATE_HOME", &state).stdin(Stdio::null()).stdout(out);
            let done = command.stderr(Stdio::piped()).output().unwrap();
            (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
        };
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (code, said) = run(writer.into());
        assert!(code.is_some_and(|code| code < 2), "{args:?}: {code:?} {said}");
        assert!(
            !said.contains("panicked") && !said.contains("standard output"),
            "{args:?}: {said}"
        );
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (code, said) = run(full.into());
        assert_eq!(code, Some(failed), "{args:?}: {said}");
        assert!(said.contains("cannot write to standard output: No space"), "{args:?}: {said}");
    }
}

#[cfg(feature = "tools")]
#[test]
fn ctrl_c_shows_what_bench_has_so_far() {
    let server = Server::start(
        WEIR,
        "events { } http { server { listen 127.0.0.1:%%PORT%%; location / {
             access_log access.log; return 200 x; } } }",
    );
    let dir = server.dir();
    let out = std::fs::File::create(dir.file("out")).unwrap();
    let mut command = Command::new(WEIR);
    let url = format!("http://127.0.0.1:{}/", server.port());
    command.args(["bench", "-d", "1h", "-c", "1", "--rate", "100", &url]).stdout(out);
    let mut bench = Process::start(&mut command);
    server.wait_file("access.log", "GET / ", 3);
    bench.signal(Signal::INT);
    assert_eq!(bench.wait().code(), Some(130));
    let text = dir.read("out");
    assert!(text.contains(" requests answered in ") && text.contains("\nlatency "), "{text}");
}

/// The built-in configuration has one address.
#[test]
fn a_demo_without_its_port_says_what_to_do() {
    // Another program has it, or this test.
    let _taken = std::net::TcpListener::bind("127.0.0.1:8080");
    let out = run(WEIR, ["--demo"]);
    assert_eq!(out.status.code(), Some(1));
    let text = stderr(&out);
    let last = text.lines().next_back().unwrap_or_default();
    assert!(last.contains("needs 127.0.0.1:8080, where another program listens"), "{text}");
}
