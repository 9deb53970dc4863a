//! dav-ext.

use std::time::{Duration, UNIX_EPOCH};

use weir_testkit::{Dir, Response, Server};

use crate::{example, refused, server_in};

fn with_files() -> Dir {
    let dir = Dir::new();
    let path = dir.write("list/a & b.txt", "12345");
    let file = std::fs::File::options().append(true).open(path).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(1_706_933_106)).unwrap();
    dir.write("list/sub/x", "x");
    dir.write("list/.hidden", "x");
    dir
}

fn start() -> Server {
    server_in(with_files(), "", "dav_methods PUT DELETE; dav_ext_methods PROPFIND OPTIONS;")
}

fn find(s: &Server, path: &str, depth: &str, body: &str) -> Response {
    let headers = format!("Depth: {depth}\r\nContent-Length: {}\r\n", body.len());
    s.ask(&format!("PROPFIND {path}"), &headers, body)
}

/// What stands in an element, each time that it does.
fn all<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
    let (begin, end) = (format!("<D:{name}>"), format!("</D:{name}>"));
    text.split(&begin).skip(1).map(|rest| rest.split(&end).next().unwrap()).collect()
}

#[test]
fn a_directory_tells_what_is_in_it() {
    let s = start();
    let said = find(&s, "/list/", "1", "");
    assert_eq!((said.status, said.header("Content-Type")), (207, Some("text/xml; charset=utf-8")));
    let text = said.body();
    assert_eq!(all(&text, "href"), ["/list/", "/list/a%20&amp;%20b.txt", "/list/sub/"], "{text}");
    assert_eq!(all(&text, "displayname"), ["list", "a &amp; b.txt", "sub"]);
    assert_eq!(all(&text, "getcontentlength"), ["5"]);
    assert_eq!(all(&text, "resourcetype"), ["<D:collection/>", "", "<D:collection/>"]);
    assert!(all(&text, "getlastmodified").contains(&"Sat, 03 Feb 2024 04:05:06 GMT"), "{text}");
    let text = find(&s, "/list/", "0", "").body();
    assert_eq!(all(&text, "href"), ["/list/"]);
}

#[test]
fn what_is_asked_for_is_told() {
    let s = start();
    let ask = |body: &str| find(&s, "/list/a%20%26%20b.txt", "0", body).body();
    let some = ask(
        "<?xml version='1.0'?><propfind xmlns='DAV:'><prop><getcontentlength/><x/></prop></propfind>",
    );
    assert_eq!((all(&some, "getcontentlength"), all(&some, "displayname").len()), (vec!["5"], 0));
    let names = ask("<d:propfind xmlns:d='DAV:'><d:propname/></d:propfind>");
    assert!(names.contains("<D:getcontentlength/>") && !names.contains('5'), "{names}");
    let usual = ask("<d:propfind xmlns:d='DAV:'><d:allprop/></d:propfind>");
    assert_eq!(all(&usual, "getcontentlength"), ["5"]);
}

#[test]
fn what_cannot_be_told_is_refused() {
    let s = start();
    for (path, depth, body, status) in [
        ("/list/", "infinity", "", 403),
        ("/list/", "2", "", 400),
        ("/list/", "0", "no XML", 400),
        ("/list/", "0", "<a>", 400),
        ("/none", "0", "", 404),
    ] {
        assert_eq!(find(&s, path, depth, body).status, status, "{path} {depth} {body}");
    }
    let entities = "<!DOCTYPE a [<!ENTITY b 'bbbbbbbb'><!ENTITY c '&b;&b;&b;&b;'>]><a>&c;</a>";
    assert_eq!(find(&s, "/list/", "0", entities).status, 400);
    assert_eq!(find(&s, "/list/", "0", &"<a/>".repeat(20_000)).status, 413);
    let text = refused("server { location / { dav_ext_methods PROPFIND LOCK; } }");
    assert!(text.contains("\"LOCK\" is not built: weir has no locks of WebDAV"), "{text}");
}

#[test]
fn who_asks_what_may_be_done_is_told() {
    let s = start();
    let said = s.ask("OPTIONS /list/", "", "");
    let told = (said.status, said.header("DAV"), said.header("Allow"));
    assert_eq!(told, (200, Some("1"), Some("GET,HEAD,PUT,DELETE,PROPFIND,OPTIONS")));
}

#[test]
fn the_example_of_the_page_works() {
    let dir = with_files();
    let files = dir.path().display();
    let lines = example("dav-ext").replace("/srv/files", &format!("{files}/list"));
    let lines = lines.replace("/srv/bodies", &format!("{files}/bodies"));
    let s = server_in(dir, "", &lines);
    let text = find(&s, "/files/", "1", "").body();
    assert_eq!(all(&text, "href"), ["/files/", "/files/a%20&amp;%20b.txt", "/files/sub/"]);
}
