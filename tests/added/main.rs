//! Third-party modules of nginx that are built into weir.

mod cache_purge;
mod dav_ext;
mod echo;
mod fancyindex;
mod geoip;
mod headers_more;
mod image_filter;
mod mmdb;

use weir_testkit::{Dir, Response, Server, examples};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

fn server(http: &str, server: &str) -> Server {
    server_in(Dir::new(), http, server)
}

fn server_in(dir: Dir, http: &str, server: &str) -> Server {
    let conf = format!(
        "events {{ }} http {{ access_log off; default_type text/plain; types {{ text/html html; }} {http}
         server {{ listen 127.0.0.1:%%PORT%%; root %%DIR%%; {server} }} }}"
    );
    Server::start_in(dir, WEIR, &conf)
}

/// The first example behind a heading of the page about these modules.
fn example(heading: &str) -> String {
    let page = include_str!("../../docs/modules.md");
    let section = page.split("\n## ").find_map(|part| part.strip_prefix(heading));
    let section = section.unwrap_or_else(|| panic!("no section {heading}"));
    examples(section).next().expect("an example").to_owned()
}

/// The values of all lines of a header.
fn all<'a>(answer: &'a Response, name: &str) -> Vec<&'a str> {
    let meant = answer.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
    meant.map(|(_, value)| value.as_str()).collect()
}

/// What is said of an `http` block that is refused.
fn refused(http: &str) -> String {
    let dir = Dir::new();
    dir.write("nginx.conf", format!("events {{ }} http {{ {http} }}"));
    let prefix = dir.path().display().to_string();
    let out = weir_testkit::run(WEIR, ["-t", "-e", "stderr", "-p", &prefix, "-c", "nginx.conf"]);
    assert!(!out.status.success(), "{http}");
    String::from_utf8_lossy(&out.stderr).into_owned()
}
