//! Packages work: the configurations of the Debian package, of the container and of the chart, and
//! examples of pages without a test module of their own. All pages of the site exist.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use weir_testkit::{Deaf, Dir, Server, examples, listen, run};

#[path = "packaging/debian.rs"]
mod debian;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// A configuration of a package, with the places of a test instead of its own.
fn placed(text: &str) -> String {
    let places = [
        ("/etc/weir/", "%%DIR%%/"),
        ("/var/log/weir/", "%%DIR%%/"),
        ("pid /run/nginx.pid;", ""),
        ("pid /tmp/weir.pid;", ""),
        ("/tmp/", "%%DIR%%/"),
        ("/dev/stdout", "%%DIR%%/out.log"),
        ("error_log stderr", "error_log %%DIR%%/error.log"),
        ("/srv/site", "%%DIR%%/site"),
        ("/var/www/html", "%%DIR%%/site"),
        ("listen 80 default_server;", "listen 127.0.0.1:%%PORT%% default_server;"),
        ("listen [::]:80 default_server;", ""),
        ("listen 8080 default_server;", "listen 127.0.0.1:%%PORT%% default_server;"),
        ("listen 8080;", "listen 127.0.0.1:%%PORT%%;"),
        ("listen 8081;", "listen 127.0.0.1:%%PORT1%%;"),
        ("user www-data;", ""),
    ];
    places.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// A directory with what the packages bring along.
fn site() -> Dir {
    let dir = Dir::new();
    dir.write("mime.types", read("packaging/debian/mime.types"));
    dir.write("site/index.weir.html", read("packaging/debian/index.weir.html"));
    dir.write("site/style.css", "p { }");
    dir
}

#[test]
fn the_debian_package_s_site_is_served() {
    let server = Server::start_in(site(), WEIR, &placed(&read("packaging/debian/nginx.conf")));
    assert_eq!(server.logged("[warn]"), 0, "{}", server.log());
    let page = server.get("/");
    assert_eq!((page.status, page.header("Content-Type")), (200, Some("text/html")));
    assert!(page.body().contains("<h1>weir serves</h1>"));
    assert_eq!(server.get("/style.css").header("Content-Type"), Some("text/css"));
    assert!(server.get("/weir-status").body().contains("weir_requests_total"));
}

#[test]
fn the_container_serves_a_site_and_tells_its_platform() {
    let dir = site();
    let port = weir_testkit::free_port().to_string();
    let inside = placed(&read("packaging/container/default.conf")).replace("%%PORT%%", &port);
    let inside = inside.replace("%%DIR%%", &dir.path().display().to_string());
    dir.write("conf.d/default.conf", inside);
    let server = Server::start_in(dir, WEIR, &placed(&read("packaging/container/nginx.conf")));
    assert_eq!(server.logged("[warn]"), 0, "{}", server.log());
    let at = |port: u16, path: &str| weir_testkit::Client::connect(port).get(path);
    assert!(at(port.parse().unwrap(), "/").body().contains("<h1>weir serves</h1>"));
    assert_eq!(at(server.port_at(1), "/healthz").body(), "ok\n");
    assert!(at(server.port_at(1), "/metrics").body().contains("# HELP weir_"));
    assert_eq!(at(server.port_at(1), "/").status, 404);
    // The image's health check needs none of the tools. It fails where nothing listens.
    assert!(is_healthy(server.port_at(1)) && !is_healthy(weir_testkit::free_port()));
    // All else of the root may be read-only.
    let names = fs::read_dir(server.dir().path()).unwrap().map(|entry| entry.unwrap().file_name());
    let made: Vec<_> = names.filter(|name| name.to_string_lossy().ends_with("_temp")).collect();
    assert!(made.is_empty(), "{made:?}");
}

#[test]
fn the_file_that_weir_starts_with_beside_weir_ingress_takes_a_configuration() {
    let frame = read("packaging/helm/weir-ingress/files/ingress.conf");
    // Each server of the tests has a pid file of its own.
    let text = frame
        .replace("pid /run/weir/weir.pid;\n", "")
        .replace("/run/weir/", "%%DIR%%/")
        .replace("listen 8081;", "listen 127.0.0.1:%%PORT%%;");
    let server = Server::start_in(Dir::new(), WEIR, &placed(&text));
    assert_eq!(server.logged("[warn]"), 0, "{}", server.log());
    assert_eq!(server.get("/healthz").body(), "ok\n");
    assert!(server.get("/metrics").body().contains("# HELP weir_"));
    // A door for configurations, and not for what is larger than it says.
    assert!(frame.contains("weir_api config;") && frame.contains("client_max_body_size 256m;"));
    assert!(server.dir().file("api.sock").exists());
}

/// What the image's health check says of a server at another port.
fn is_healthy(port: u16) -> bool {
    let image = read("packaging/container/Containerfile");
    let check =
        image.lines().find(|line| line.starts_with("HEALTHCHECK ")).expect("a health check");
    let words = check.split_once(" CMD ").expect("a command").1;
    let words: Vec<String> = serde_json::from_str(words).expect("a list in JSON");
    let words: Vec<String> =
        words.iter().map(|word| word.replace("8081", &port.to_string())).collect();
    run(&words[0], &words[1..]).status.success()
}

#[test]
fn the_chart_s_first_site_stands_beside_the_container_s_frame() {
    // The block of `default.conf:` in the values, without its indentation.
    let values = read("packaging/helm/weir/values.yaml");
    let block = values.split_once("default.conf: |\n").expect("a first site").1;
    let block: Vec<&str> = block.lines().map_while(|line| line.strip_prefix("    ")).collect();
    let frame = read("packaging/container/nginx.conf");
    let text = frame.replace("include /etc/weir/conf.d/*.conf;", &block.join("\n"));
    let server = Server::start_in(site(), WEIR, &placed(&text));
    assert!(server.get("/").body().starts_with("served by "));
}

#[test]
fn a_client_gets_the_best_coding_that_it_takes() {
    let page = read("docs/compression.md");
    let example = examples(&page).next().expect("an example");
    let dir = Dir::new();
    dir.write("site/large.css", "p { color: red }\n".repeat(1000));
    let conf = format!(
        "events {{ }} http {{ types {{ text/css css; }} {example}
         server {{ listen 127.0.0.1:%%PORT%%; root %%DIR%%/site; }} }}"
    );
    let server = Server::start_in(dir, WEIR, &conf);
    let ask = |takes: &str| {
        let head = format!("Accept-Encoding: {takes}\r\n");
        let answer = server.ask("GET /large.css", &head, "");
        assert_eq!(answer.header("Vary"), Some("Accept-Encoding"), "{takes}");
        answer.header("Content-Encoding").unwrap_or("none").to_owned()
    };
    assert_eq!(ask("gzip, deflate, br, zstd"), "br");
    assert_eq!(ask("gzip, zstd"), "zstd");
    assert_eq!(ask("gzip"), "gzip");
    assert_eq!(ask("identity"), "none");
}

/// What the page about symptoms says of an error log is what stands there.
#[test]
fn what_went_wrong_behind_is_told_in_the_words_of_the_page() {
    let page = read("docs/troubleshooting.md");
    let says = |answer: &'static str| {
        listen(move |mut stream| {
            // All of the request is taken, so that its end is no reset.
            let mut head = BufReader::new(stream.try_clone().unwrap()).lines();
            while head.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let _ = stream.write_all(answer.as_bytes());
        })
    };
    let (nothing, wrong) = (says(""), says("HTTP/1.1 200 OK\r\nA\x01: b\r\n\r\n"));
    let large: &str =
        Box::leak(format!("HTTP/1.1 200 OK\r\nA: {}\r\n\r\n", "a".repeat(9000)).into());
    let large = says(large);
    let deaf = Deaf::new();
    let conf = format!(
        "events {{ }} http {{ proxy_connect_timeout 200ms; proxy_buffer_size 4k; resolver 127.0.0.1:1;
         resolver_timeout 200ms;
         upstream ill {{ server 127.0.0.1:1 max_fails=1 fail_timeout=1h; server 127.0.0.1:2; }}
         server {{ listen 127.0.0.1:%%PORT%%;
             location /refused {{ proxy_pass http://127.0.0.1:1; }}
             location /slow {{ proxy_pass http://127.0.0.1:{}; }}
             location /closed {{ proxy_pass http://127.0.0.1:{nothing}; }}
             location /wrong {{ proxy_pass http://127.0.0.1:{wrong}; }}
             location /large {{ proxy_pass http://127.0.0.1:{large}; }}
             location /ill {{ proxy_pass http://ill; }}
             location /name {{ proxy_pass http://$arg_name; }} }} }}",
        deaf.port()
    );
    let server = Server::start(WEIR, &conf);
    for (path, status, words) in [
        ("/refused", 502, "refused"),
        ("/slow", 504, "timed out"),
        ("/closed", 502, "prematurely closed connection"),
        ("/wrong", 502, "sent invalid header"),
        ("/large", 502, "sent too big header"),
        ("/name?name=a.example", 502, "could not be resolved"),
    ] {
        let before = server.logged(words);
        assert_eq!(server.get(path).status, status, "{path}");
        server.wait_log(words, before + 1);
        assert!(page.contains(&format!("*{words}")), "{words}");
    }
    assert_eq!((server.get("/ill").status, server.get("/ill").status), (502, 502));
    server.wait_log("no live upstreams", 1);
    assert!(page.contains("*no live upstreams*"));
}

#[test]
fn statuses_that_the_page_explains_have_these_causes() {
    let dir = Dir::new();
    dir.write("site/in/file.txt", "found");
    let server = Server::with_locations(
        dir,
        WEIR,
        "",
        "location /in/ { root %%DIR%%/site; }
         location /list/in/ { alias %%DIR%%/site/in/; autoindex on; }
         location /twice/ { root %%DIR%%/site; }
         location /body { client_max_body_size 1m; return 204; }",
    );
    let size = |bytes: usize| format!("Content-Length: {bytes}\r\nExpect: 100-continue\r\n");
    let refused = server.ask("POST /in/file.txt", &size((1 << 20) + 1), "");
    assert_eq!(refused.status, 413);
    server.wait_log("client intended to send too large body", 1);
    let long = "a".repeat(9000);
    assert_eq!(server.get(&format!("/{long}")).status, 414);
    server.wait_log("client sent too long URI", 1);
    assert_eq!(server.ask("GET /", &format!("X: {long}\r\n"), "").status, 400);
    server.wait_log("client sent too long header line", 1);
    for hosts in ["", "Host: a\r\nHost: b\r\n"] {
        let mut client = server.connect();
        client.send(format!("GET / HTTP/1.1\r\n{hosts}\r\n"));
        assert_eq!(client.response().status, 400, "{hosts}");
    }
    assert_eq!(server.get("/in/").status, 403);
    assert_eq!(server.get("/list/in/").status, 200);
    assert_eq!(server.get("/list/in/file.txt").body(), "found");
    assert_eq!(server.get("/twice/in/file.txt").status, 404);
}

#[test]
fn the_site_s_index_has_each_page() {
    let index = read("docs/SUMMARY.md");
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") && name != "SUMMARY.md" {
            assert!(index.contains(&format!("({name})")), "docs/SUMMARY.md lacks {name}");
        }
    }
}

#[test]
fn links_between_pages_lead_somewhere() {
    let mut seen = 0;
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let tops = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"];
    for page in docs.chain(tops.map(|name| root().join(name))) {
        if page.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (file, part) = link.split_once('#').unwrap_or((link, ""));
            if file.contains("://") || file.contains(' ') {
                continue;
            }
            let to = match file.is_empty() {
                true => page.clone(),
                false => page.parent().unwrap().join(file),
            };
            assert!(to.exists(), "{}: no {link}", page.display());
            if !part.is_empty() && to.is_file() {
                let there = fs::read_to_string(&to).unwrap();
                let titled = there.lines().filter(|line| line.starts_with('#')).map(anchor);
                assert!(titled.into_iter().any(|at| at == part), "{}: no {link}", page.display());
            }
            seen += 1;
        }
    }
    assert!(seen > 50, "{seen}");
}

/// What a title is linked by.
fn anchor(title: &str) -> String {
    let text = title.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn the_unit_is_one_that_systemd_understands() {
    let unit = read("packaging/debian/weir.service");
    let dir = Dir::new();
    let unit = unit.replace("/usr/sbin/weir", WEIR).replace("Documentation=man:weir(8)\n", "");
    let path = dir.write("weir.service", unit);
    if !run("sh", ["-c", "command -v systemd-analyze"]).status.success() {
        println!("not run: systemd-analyze is not installed");
        return;
    }
    let said = run("systemd-analyze", ["verify", path.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success() && !text.contains("weir.service"), "{text}");
}

/// The system calls of a set of systemd's, and of the sets in it.
fn calls_of(set: &str, all: &str) -> Vec<String> {
    let after = all.split('\n').skip_while(|line| *line != set).skip(1);
    let names = after.take_while(|line| line.starts_with(' ')).map(str::trim);
    let of = |name: &str| match name {
        set if set.starts_with('@') => calls_of(set, all),
        name => vec![name.to_owned()],
    };
    names.filter(|name| !name.starts_with('#')).flat_map(of).collect()
}

/// A server under strace, which writes down the calls that the unit's filter refuses: none.
#[test]
fn a_server_calls_nothing_that_the_units_filter_refuses() {
    let unit = read("packaging/debian/weir.service");
    let filter = unit.lines().find_map(|line| line.strip_prefix("SystemCallFilter=")).unwrap();
    let known = run("sh", ["-c", "systemd-analyze syscall-filter 2>/dev/null"]);
    let all = String::from_utf8_lossy(&known.stdout).into_owned();
    if all.is_empty() || !run("sh", ["-c", "strace -V"]).status.success() {
        return println!("not run: it needs systemd-analyze and strace");
    }
    let mut calls: Vec<String> = filter
        .split(' ')
        .flat_map(
            |word| if word.starts_with('@') { calls_of(word, &all) } else { vec![word.into()] },
        )
        .collect();
    assert!(calls.len() > 300 && calls.iter().any(|call| call == "epoll_wait"), "{calls:?}");
    // What this strace does not know is none of its mistakes.
    calls.iter_mut().for_each(|call| call.insert(0, '?'));
    for method in ["epoll", "io_uring"] {
        let dir = Dir::new();
        let refused = dir.file("refused");
        let traced = format!(
            "#!/bin/sh\nexec strace -D -f --seccomp-bpf -qq -e signal=none -e trace='!{}' -o {} {WEIR} \"$@\"\n",
            calls.join(","),
            refused.display()
        );
        let script = dir.write("weir", traced);
        fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
        if !run(script.to_str().unwrap(), ["-v"]).status.success() {
            return println!("not run: strace may not trace");
        }
        fs::create_dir(dir.file("put")).unwrap();
        fs::set_permissions(dir.file("put"), Permissions::from_mode(0o777)).unwrap();
        let mut server = Server::start_in(
            dir,
            script.to_str().unwrap(),
            &format!(
                "worker_processes 2; worker_threads 2; worker_cpu_affinity auto; worker_rlimit_nofile 1000;
                 events {{ use {method}; accept_balance reuseport_load; }} thread_pool extra threads=2;
                 http {{ access_log %%DIR%%/access.log; proxy_cache_path %%DIR%%/cache keys_zone=cache:1m;
                         server {{ listen 127.0.0.1:%%PORT%%; listen unix:%%DIR%%/socket;
                                   location / {{ proxy_pass http://unix:%%DIR%%/socket:/in; proxy_cache cache; proxy_cache_valid 1h; }}
                                   location /in {{ return 200 x; }}
                                   location /lua {{ content_by_lua_block {{
                                       local p = io.popen('id'); ngx.say(p:read('*a')); p:close(); ngx.sleep(0.001) }} }}
                                   location /put/ {{ root %%DIR%%; dav_methods PUT DELETE MOVE MKCOL; }}
                                   location /file/ {{ aio threads=extra; sendfile on; alias %%DIR%%/; }} }} }}"
            ),
        );
        for path in ["/", "/", "/lua", "/file/nginx.conf"] {
            assert_eq!(server.get(path).status, 200, "{path}");
        }
        assert_eq!(server.ask("PUT /put/a", "Content-Length: 1\r\n", "x").status, 201);
        assert_eq!(server.ask("DELETE /put/a", "", "").status, 204);
        server.reload();
        server.signal(rustix::process::Signal::USR1);
        server.wait_log(": reopening logs", 3);
        assert_eq!(server.get("/file/nginx.conf").status, 200);
        assert!(server.stop().success());
        assert_eq!(server.dir().read("refused"), "", "{method}");
    }
}

#[test]
fn images_are_built_on_exact_versions() {
    let file = read("packaging/container/Containerfile");
    let images: Vec<&str> = file.lines().filter_map(|line| line.strip_prefix("FROM ")).collect();
    for image in &images {
        let tag = image.split(' ').next().and_then(|image| image.split_once(':'));
        let version = tag.and_then(|(_, tag)| tag.split('-').next());
        assert!(version.is_some_and(|version| version.contains('.')), "{image}");
    }
    assert_eq!(images.len(), 2);
}

/// An SPDX expression, or an older one with slashes, that holds with these licences.
fn holds(expression: &str, allowed: &[&str]) -> bool {
    fn any(words: &mut std::iter::Peekable<std::slice::Iter<'_, &str>>, allowed: &[&str]) -> bool {
        let mut holds = all(words, allowed);
        while words.next_if(|word| matches!(**word, "OR" | "/")).is_some() {
            holds |= all(words, allowed);
        }
        holds
    }
    fn all(words: &mut std::iter::Peekable<std::slice::Iter<'_, &str>>, allowed: &[&str]) -> bool {
        let mut holds = one(words, allowed);
        while words.next_if(|word| **word == "AND").is_some() {
            holds &= one(words, allowed);
        }
        holds
    }
    fn one(words: &mut std::iter::Peekable<std::slice::Iter<'_, &str>>, allowed: &[&str]) -> bool {
        match words.next() {
            Some(&"(") => {
                let holds = any(words, allowed);
                words.next_if(|word| **word == ")").is_some() && holds
            }
            Some(licence) if words.next_if(|word| **word == "WITH").is_some() => {
                let exception = words.next().copied().unwrap_or_default();
                allowed.contains(&format!("{licence} WITH {exception}").as_str())
            }
            Some(licence) => allowed.contains(licence),
            None => false,
        }
    }
    let apart = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " / ");
    let words: Vec<&str> = apart.split_whitespace().collect();
    let mut words = words.iter().peekable();
    any(&mut words, allowed) && words.next().is_none()
}

/// What `deny.toml` says of licences, sources and banned crates, without cargo-deny and a network.
#[test]
fn what_weir_is_built_from_may_be() {
    let allowed = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"];
    let cases = [
        ("MIT OR GPL-3.0", true),
        ("MIT/Apache-2.0", true),
        ("GPL-3.0 AND MIT", false),
        ("(GPL-3.0 OR MIT) AND Apache-2.0", true),
        ("MIT AND (GPL-3.0 OR AGPL-3.0)", false),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("GPL-3.0 WITH GCC-exception", false),
        ("MIT Apache-2.0", false),
        ("", false),
    ];
    for (expression, does) in cases {
        assert_eq!(holds(expression, &allowed), does, "{expression}");
    }
    let deny = read("deny.toml");
    let list = |name: &str| -> Vec<String> {
        let list = deny.split(&format!("\n{name} = [")).nth(1).expect("a list");
        let quoted = list.split(']').next().unwrap().split('"');
        quoted.skip(1).step_by(2).map(str::to_owned).collect()
    };
    let (allowed, banned) = (list("allow"), list("deny"));
    let allowed: Vec<&str> = allowed.iter().map(String::as_str).collect();
    assert!(allowed.contains(&"MIT") && banned.contains(&"openssl-sys".to_owned()));
    let options =
        ["metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform"];
    let mut seen = 0;
    for target in list("targets") {
        let manifest = root().join("Cargo.toml");
        let args = options.into_iter().chain([
            target.as_str(),
            "--manifest-path",
            manifest.to_str().unwrap(),
        ]);
        let out = run(env!("CARGO"), args);
        if !out.status.success() {
            // Another machine's crates need not be here.
            println!("not looked at for {target}: {}", String::from_utf8_lossy(&out.stderr));
            continue;
        }
        let all: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        for package in all["packages"].as_array().unwrap() {
            let name = package["name"].as_str().unwrap();
            let licence = package["license"].as_str().unwrap_or_default();
            assert!(holds(licence, &allowed), "{name} has the licence {licence:?}");
            assert!(!banned.iter().any(|banned| banned == name), "{name} is banned");
            let source = package["source"].as_str();
            let is_known = source.is_none_or(|source| {
                source == "registry+https://github.com/rust-lang/crates.io-index"
            });
            assert!(is_known, "{name} comes from {source:?}");
            seen += 1;
        }
    }
    assert!(seen > 100, "{seen}");
}

/// What the shipped build is made for goes through with this build, too: every answer as it should be, nothing logged, and an end.
#[test]
fn a_build_does_the_work_that_it_is_trained_with() {
    if let Some(missing) = ["python3", "openssl"]
        .iter()
        .find(|p| !run("sh", ["-c", &format!("command -v {p}")]).status.success())
    {
        println!("not run: {missing} is not installed");
        return;
    }
    let work = root().join("packaging/training/run").display().to_string();
    let done = run("python3", [&work, WEIR, "--requests", "64"]);
    let text = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && text.is_empty(), "{text}");
    assert!(
        String::from_utf8_lossy(&done.stdout).contains("/fastcgi-kept/"),
        "the work is not all there"
    );
}

#[test]
fn the_chart_of_weir_ingress_renders() {
    let chart = root().join("packaging/helm/weir-ingress").display().to_string();
    if !run("sh", ["-c", "command -v helm"]).status.success() {
        println!("not run: helm is not installed");
        return;
    }
    let all = "autoscaling.enabled=true,serviceMonitor.enabled=true,admission.enabled=true,admission.secretName=tls,\
        gateway.class=weir,gateway.services.enabled=true,gateway.services.selector.app=weir,gateway.ports[0].name=dns,gateway.ports[0].port=5353,gateway.ports[0].protocol=UDP";
    for set in ["replicaCount=2", "kind=DaemonSet", all] {
        let lint = run("helm", ["lint", "--strict", &chart, "--set", set]);
        assert!(lint.status.success(), "{}", String::from_utf8_lossy(&lint.stdout));
        let made = run("helm", ["template", "site", &chart, "--set", set]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let text = String::from_utf8_lossy(&made.stdout);
        for kind in [
            "HorizontalPodAutoscaler",
            "ServiceMonitor",
            "ValidatingWebhookConfiguration",
            "GatewayClass",
        ] {
            assert_eq!(text.contains(&format!("kind: {kind}\n")), set == all, "{kind}: {text}");
        }
        // The right to make Services comes with the wish for them.
        for words in ["--gateway-service-selector=app=weir", "verbs: [create, patch, delete]"] {
            assert_eq!(text.contains(words), set == all, "{words}: {text}");
        }
        for kind in ["Service", "ConfigMap", "PodDisruptionBudget", "NetworkPolicy", "IngressClass"]
        {
            assert!(text.contains(&format!("kind: {kind}\n")), "{kind}: {text}");
        }
        for what in ["runAsNonRoot: true", "readOnlyRootFilesystem: true", "drop: [\"ALL\"]"] {
            assert!(text.contains(what), "{what}: {text}");
        }
    }
}

#[test]
fn the_chart_renders() {
    let chart = root().join("packaging/helm/weir").display().to_string();
    if !run("sh", ["-c", "command -v helm"]).status.success() {
        println!("not run: helm is not installed");
        return;
    }
    let all = "autoscaling.enabled=true,serviceMonitor.enabled=true,config=events{}";
    for set in ["replicaCount=1", all] {
        let lint = run("helm", ["lint", "--strict", &chart, "--set", set]);
        assert!(lint.status.success(), "{}", String::from_utf8_lossy(&lint.stdout));
        let made = run("helm", ["template", "site", &chart, "--set", set]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let text = String::from_utf8_lossy(&made.stdout);
        let kinds = ["HorizontalPodAutoscaler", "ServiceMonitor"];
        for kind in kinds {
            assert_eq!(text.contains(&format!("kind: {kind}")), set == all, "{kind}: {text}");
        }
        for kind in ["Deployment", "Service", "ConfigMap", "PodDisruptionBudget"] {
            assert!(text.contains(&format!("kind: {kind}\n")), "{kind}: {text}");
        }
    }
}
