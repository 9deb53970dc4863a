//! The module dav-ext: PROPFIND, LOCK and UNLOCK.

use std::time::{Duration, UNIX_EPOCH};

use weir_testkit::{Dir, Response, Server};

use crate::{WEIR, example, refused, server_in};

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

/// Few entries are written on the loop, many in two operations of a thread.
#[test]
fn a_large_directory_is_sorted_and_written_on_a_thread() {
    let dir = Dir::new();
    for (directory, count) in [("few", 100), ("many", 300)] {
        (0..count).for_each(|n| _ = dir.write(&format!("{directory}/{n}"), ""));
    }
    let status = "location = /status { weir_status; allow 127.0.0.1; deny all; }";
    let s = server_in(dir, "", &format!("dav_ext_methods PROPFIND; {status}"));
    let operations = || {
        let text = s.get("/status").body();
        let name = "weir_thread_pool_wait_seconds_count{pool=\"default\"} ";
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, |count| count.parse::<u64>().unwrap())
    };
    let spent = |path: &str, entries: usize| {
        let before = operations();
        for _ in 0..20 {
            assert_eq!(all(&find(&s, path, "1", "").body(), "href").len(), entries + 1);
        }
        operations() - before
    };
    // Forty more. An operation may be counted only after the answer has come.
    let (few, many) = (spent("/few/", 100), spent("/many/", 300));
    assert!(many > few + 30, "{few} for few, {many} for many");
}

/// A short body may ask for thousands of bytes of each file.
#[test]
fn an_answer_of_unbounded_length_is_refused() {
    let names: String = (0..300).map(|n| format!("<n{n}/>")).collect();
    let body = format!("<propfind xmlns='DAV:'><prop>{names}</prop></propfind>");
    let dir = Dir::new();
    (0..20_000).for_each(|n| drop(dir.write(&format!("list/{n}"), "")));
    let s = server_in(dir, "", "dav_ext_methods PROPFIND;");
    assert_eq!(find(&s, "/list/0", "0", &body).status, 207);
    assert_eq!(find(&s, "/list/", "1", &body).status, 507);
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
        ("/list/", "0", "<propfind xmlns='DAV:'><prop><a:b xmlns:a=''/></prop></propfind>", 400),
        ("/list/", "0", "<propfind xmlns='DAV:'><prop><b xmlns=''/></prop></propfind>", 207),
        ("/none", "0", "", 404),
    ] {
        assert_eq!(find(&s, path, depth, body).status, status, "{path} {depth} {body}");
    }
    let entities = "<!DOCTYPE a [<!ENTITY b 'bbbbbbbb'><!ENTITY c '&b;&b;&b;&b;'>]><a>&c;</a>";
    assert_eq!(find(&s, "/list/", "0", entities).status, 400);
    assert_eq!(find(&s, "/list/", "0", &"<a/>".repeat(20_000)).status, 413);
    // Each name would have the namespace with it, for each file of the directory.
    let names = format!(
        "<propfind xmlns='DAV:'><prop xmlns:n='{}'>{}</prop></propfind>",
        "x".repeat(4000),
        "<n:b/>".repeat(500)
    );
    assert_eq!(find(&s, "/list/", "1", &names).status, 400);
    s.wait_log("dav_ext: the body of PROPFIND asks for too many properties", 1);
}

#[test]
fn what_is_wrong_with_locks_is_said() {
    for (text, says) in [
        ("dav_ext_lock_zone zone=a:16k;", "zone \"zone=a:16k\" is too small"),
        ("dav_ext_lock_zone zone=a:1m timeout=0;", "invalid timeout value \"timeout=0\""),
        ("dav_ext_lock_zone timeout=1s;", "\"dav_ext_lock_zone\" must have \"zone\" parameter"),
        ("dav_ext_lock_zone zone=a:1m x;", "invalid parameter \"x\""),
        ("dav_ext_lock_zone zone=a:1m; dav_ext_lock_zone zone=a:1m;", "duplicate zone \"a\""),
        ("dav_ext_lock zone=a;", "zero size shared memory zone \"a\""),
        ("dav_ext_lock a;", "invalid parameter \"a\""),
    ] {
        let said = refused(text);
        assert!(said.contains(says), "{text}: {said}");
    }
}

const LOCKING: &str = "client_body_temp_path %%DIR%%/bodies;
    dav_methods PUT DELETE MKCOL COPY MOVE;
    dav_ext_methods PROPFIND PROPPATCH OPTIONS LOCK UNLOCK;
    dav_ext_lock zone=l;";
const WISH: &str = "<lockinfo xmlns='DAV:'><lockscope><exclusive/></lockscope>\
    <locktype><write/></locktype></lockinfo>";

fn locking(zone: &str) -> Server {
    writing(with_files(), &format!("dav_ext_lock_zone zone=l:{zone};"), LOCKING)
}

/// A server with a worker that may write to the test's files.
fn writing(dir: Dir, http: &str, server: &str) -> Server {
    let conf = format!(
        "user root; events {{ }}
         http {{ access_log off; {http} server {{ listen 127.0.0.1:%%PORT%%; root %%DIR%%; {server} }} }}"
    );
    Server::start_in(dir, WEIR, &conf)
}

fn change(s: &Server, line: &str, headers: &str, body: &str) -> u16 {
    s.ask(line, &format!("{headers}Content-Length: {}\r\n", body.len()), body).status
}

fn ask_for_lock(s: &Server, path: &str, headers: &str) -> Response {
    let headers = format!("{headers}Content-Length: {}\r\n", WISH.len());
    s.ask(&format!("LOCK {path}"), &headers, WISH)
}

/// A token as `If` and `Lock-Token` have it.
fn lock(s: &Server, path: &str, headers: &str) -> String {
    let said = ask_for_lock(s, path, headers);
    let token = said.header("Lock-Token").unwrap_or_else(|| panic!("{}", said.body())).to_owned();
    assert!(token.starts_with("<urn:uuid:") && token.ends_with('>'), "{token}");
    let inside = token.trim_matches(['<', '>']);
    assert!(said.body().contains(&format!("<D:locktoken><D:href>{inside}<")), "{}", said.body());
    token
}

#[test]
fn only_the_holder_of_the_lock_may_change_a_file() {
    let s = locking("1m");
    let token = lock(&s, "/list/sub/x", "");
    let with = format!("If: ({token})\r\n");
    let other = "If: (<urn:uuid:00000000-0000-0000-0000-000000000007>)\r\n";
    for line in ["PUT /list/sub/x", "DELETE /list/sub/x", "DELETE /list/sub/"] {
        assert_eq!(change(&s, line, "", ""), 423, "{line}");
        assert_eq!(change(&s, line, other, ""), 412, "{line}");
    }
    assert_eq!(change(&s, "MOVE /list/sub/x", "Destination: /y\r\n", ""), 423);
    for path in ["/list/sub/x", "/./list/sub/x", "/list/%2e/sub//x", "/list//sub/x?y"] {
        let to = format!("Destination: {path}\r\n");
        assert_eq!(change(&s, "COPY /list/a%20%26%20b.txt", &to, ""), 423, "{path}");
    }
    assert_eq!(change(&s, "PUT /list/sub/y", "", "free"), 201);
    assert_eq!(s.get("/list/sub/x").body(), "x");
    // A condition that is always true does not show the lock.
    assert_eq!(change(&s, "PUT /list/sub/x", "If: (Not <DAV:no-lock>)\r\n", ""), 423);
    assert_eq!(change(&s, "PUT /list/sub/x", "If: nonsense\r\n", ""), 400);
    assert_eq!(change(&s, "PUT /list/sub/x", &with, "new"), 204);
    assert_eq!(s.get("/list/sub/x").body(), "new");
    assert_eq!(ask_for_lock(&s, "/list/sub/x", "").status, 423);
    assert_eq!(ask_for_lock(&s, "/list/", "Depth: infinity\r\n").status, 423);
    assert_eq!(change(&s, "UNLOCK /list/sub/x", "", ""), 400);
    assert_eq!(change(&s, "UNLOCK /list/sub/x", "Lock-Token: <a>\r\n", ""), 409);
    let shown = format!("Lock-Token: {token}\r\n");
    assert_eq!(change(&s, "UNLOCK /list/sub/y", &shown, ""), 409);
    assert_eq!(change(&s, "UNLOCK /list/sub/x", &shown, ""), 204);
    assert_eq!(change(&s, "PUT /list/sub/x", "", "free"), 204);
}

#[test]
fn a_lock_on_a_directory_binds_what_is_in_it() {
    let s = locking("1m");
    let deep = lock(&s, "/list/", "Depth: infinity\r\n");
    assert_eq!(change(&s, "PUT /list/sub/x", "", ""), 423);
    assert_eq!(change(&s, "PUT /list/sub/x", &format!("If: ({deep})\r\n"), "1"), 204);
    let tagged = format!("If: <http://localhost/list/> ({deep})\r\n");
    assert_eq!(change(&s, "PUT /list/sub/x", &tagged, "2"), 204);
    let elsewhere = format!("If: <http://other/list/> ({deep})\r\n");
    assert_eq!(change(&s, "PUT /list/sub/x", &elsewhere, "3"), 412);
    let shown = format!("Lock-Token: {deep}\r\n");
    assert_eq!(change(&s, "UNLOCK /list/sub/x", &shown, ""), 204);
    let flat = lock(&s, "/list/", "Depth: 0\r\n");
    assert_eq!(change(&s, "PUT /list/new", "", ""), 423);
    assert_eq!(change(&s, "PUT /list/sub/x", "", "free"), 204);
    assert_eq!(ask_for_lock(&s, "/list/new", "").status, 423);
    assert_eq!(ask_for_lock(&s, "/list/x", "Depth: 1\r\n").status, 400);
    assert_eq!(change(&s, "DELETE /list/", &format!("If: ({flat})\r\n"), ""), 204);
    // What is gone is not locked.
    assert_eq!(change(&s, "MKCOL /list/", "", ""), 201);
}

#[test]
fn a_lock_ends_or_is_refreshed_and_is_told_of() {
    let s = writing(with_files(), "dav_ext_lock_zone zone=l:1m timeout=2h;", LOCKING);
    assert_eq!(s.ask("OPTIONS /", "", "").header("DAV"), Some("1, 2"));
    let said = ask_for_lock(&s, "/list/new%20one", "Depth: 0\r\n");
    assert_eq!(said.status, 201);
    assert_eq!(all(&said.body(), "timeout"), ["Second-7200"]);
    assert_eq!(s.get("/list/new%20one").body(), "");
    assert_eq!(ask_for_lock(&s, "/none/x", "").status, 409);
    assert_eq!(change(&s, "PUT /none", "", "not locked"), 201);
    let token = said.header("Lock-Token").unwrap();
    let told = find(&s, "/list/", "1", "").body();
    let locks: Vec<_> = told.split("<D:activelock>").skip(1).collect();
    assert_eq!(locks.len(), 1, "{told}");
    assert!(
        locks[0].contains("<D:depth>0</D:depth>")
            && locks[0].contains(token.trim_matches(['<', '>']))
    );
    assert!(
        locks[0].contains("<D:lockroot><D:href>/list/new%20one</D:href></D:lockroot>"),
        "{told}"
    );
    assert!(told.contains("<D:lockentry>"));
    let refreshed = s.ask("LOCK /list/new%20one", &format!("If: ({token})\r\n"), "");
    assert_eq!((refreshed.status, refreshed.header("Lock-Token")), (200, None));
    assert_eq!(s.ask("LOCK /list/new%20one", "", "").status, 412);
    let tag = s.get("/list/new%20one").header("ETag").unwrap().to_owned();
    let with = |tag: &str| format!("If: ({token} [{tag}])\r\n");
    assert_eq!(change(&s, "PUT /list/new%20one", &with("\"other\""), "1"), 412);
    assert_eq!(change(&s, "PUT /list/new%20one", &with(&tag), "1"), 204);
}

#[test]
fn locks_that_cannot_be_had_are_refused() {
    let s = locking("32k");
    let ask = |body: &str| {
        s.ask("LOCK /list/sub/x", &format!("Content-Length: {}\r\n", body.len()), body).status
    };
    assert_eq!(ask("no XML"), 400);
    assert_eq!(ask(&"<a/>".repeat(20_000)), 413);
    let mut client = s.connect();
    let headers = format!("Content-Length: {}\r\n", WISH.len());
    let full = (0..2000).find(|n| client.ask(&format!("LOCK /{n}"), &headers, WISH).status == 507);
    assert!(full.is_some_and(|full| full > 50), "{full:?}");
    s.wait_log("could not allocate a lock in dav_ext zone \"l\"", 1);
    assert_eq!(change(&s, "PUT /0", "", ""), 423);
    let none = server_in(with_files(), "", "dav_ext_methods LOCK UNLOCK;");
    assert_eq!(none.ask("LOCK /list/sub/x", "", "").status, 405);
    assert_eq!(none.ask("UNLOCK /list/sub/x", "", "").status, 405);
}

/// A lock of a body.
fn lock_with(s: &Server, path: &str, headers: &str, body: &str) -> Response {
    let headers = format!("{headers}Content-Length: {}\r\n", body.len());
    s.ask(&format!("LOCK {path}"), &headers, body)
}

#[test]
fn shared_locks_stand_beside_each_other_and_keep_others_out() {
    let s = locking("1m");
    let wish = |owner: &str| {
        let owner = format!("</lockscope><owner><b xmlns='u'>{owner}</b></owner>");
        WISH.replace("exclusive", "shared").replace("</lockscope>", &owner)
    };
    let take = |owner: &str| {
        let said = lock_with(&s, "/list/sub/x", "", &wish(owner));
        assert_eq!(said.status, 200, "{}", said.body());
        said.header("Lock-Token").unwrap().to_owned()
    };
    let (one, two) = (take("me &amp; you"), take("two"));
    assert_ne!(one, two);
    let told = find(&s, "/list/sub/x", "0", "").body();
    assert_eq!(told.matches("<D:lockscope><D:shared/></D:lockscope>\n<D:depth>").count(), 2);
    for owner in ["me &amp; you", "two"] {
        let owner = format!("<D:owner><n:b xmlns:n=\"u\">{owner}</n:b></D:owner>");
        assert!(told.contains(&owner), "{told}");
    }
    assert_eq!(ask_for_lock(&s, "/list/sub/x", "").status, 423);
    assert_eq!(ask_for_lock(&s, "/list/", "Depth: infinity\r\n").status, 423);
    assert_eq!(change(&s, "PUT /list/sub/x", "", ""), 423);
    assert_eq!(change(&s, "DELETE /list/sub/", "", ""), 423);
    for token in [&one, &two] {
        assert_eq!(change(&s, "PUT /list/sub/x", &format!("If: ({token})\r\n"), "1"), 204);
    }
    let ends =
        |token: &str| change(&s, "UNLOCK /list/sub/x", &format!("Lock-Token: {token}\r\n"), "");
    assert_eq!((ends(&one), ends(&one)), (204, 409));
    assert_eq!(change(&s, "PUT /list/sub/x", "", ""), 423);
    assert_eq!(ends(&two), 204);
    let alone = lock(&s, "/list/sub/x", "");
    assert_eq!(lock_with(&s, "/list/sub/x", "", &wish("late")).status, 423);
    assert_eq!(ends(&alone), 204);
}

/// Whether the directory of tests keeps extended attributes, in which properties are stored.
fn keeps_attributes(dir: &Dir) -> bool {
    let none = rustix::fs::XattrFlags::empty();
    let set = rustix::fs::setxattr(dir.path(), "user.weir.test", b"1", none);
    set.inspect_err(|error| eprintln!("skipped: no extended attributes ({error})")).is_ok()
}

/// PROPPATCH with these parts of its body.
fn patch(s: &Server, path: &str, parts: &str) -> Response {
    let body = format!("<D:propertyupdate xmlns:D='DAV:' xmlns:u='u'>{parts}</D:propertyupdate>");
    let headers = format!("Content-Length: {}\r\n", body.len());
    s.ask(&format!("PROPPATCH {path}"), &headers, &body)
}

fn set(properties: &str) -> String {
    format!("<D:set><D:prop>{properties}</D:prop></D:set>")
}

#[test]
fn a_long_namespace_is_not_repeated_without_end() {
    let s = locking("1m");
    let named = format!("xmlns:n='{}'", "x".repeat(4000));
    let many = "<n:b/>".repeat(500);
    assert_eq!(
        patch(&s, "/list/sub/x", &format!("<D:set><D:prop {named}>{many}</D:prop></D:set>")).status,
        507
    );
    let one =
        patch(&s, "/list/sub/x", &format!("<D:set><D:prop {named}><c>{many}</c></D:prop></D:set>"));
    assert!(one.body().contains("507 Insufficient Storage"), "{}", one.body());
    let owner = format!("</lockscope><owner {named}>{many}</owner>");
    let lock = lock_with(&s, "/list/sub/x", "", &WISH.replace("</lockscope>", &owner));
    assert!(lock.status == 200 && !lock.body().contains("<D:owner>"), "{}", lock.body());
}

/// The parser compares each namespace with all others, for each element that declares one.
#[test]
fn a_body_with_many_namespaces_is_refused() {
    let s = locking("1m");
    let named: String = (0..600).map(|n| format!(" xmlns:n{n}='u'")).collect();
    let body = format!("<propfind xmlns='DAV:'{named}><allprop/></propfind>");
    assert_eq!(find(&s, "/list/sub/x", "0", &body).status, 400);
    assert_eq!(patch(&s, "/list/sub/x", &set(&format!("<u:a{named}/>"))).status, 400);
    let body = WISH.replace("<lockscope>", &format!("<a{named}/><lockscope>"));
    assert_eq!(lock_with(&s, "/list/sub/x", "", &body).status, 400);
    let long = "<a/>".repeat(1000);
    let body = format!("<propfind xmlns='DAV:'><propname/>{long}</propfind>");
    assert_eq!(find(&s, "/list/sub/x", "0", &body).status, 207);
    // Each attribute is stored with its namespace, so what is stored has more of them.
    let attributes: String = (0..600).map(|n| format!(" u:n{n}=''")).collect();
    let said = patch(&s, "/list/sub/x", &set(&format!("<u:a{attributes}/>")));
    assert!(said.body().contains("507 Insufficient Storage"), "{}", said.body());
}

#[test]
fn properties_are_kept_with_their_files() {
    let dir = with_files();
    if !keeps_attributes(&dir) {
        return;
    }
    let s = writing(dir, "dav_ext_lock_zone zone=l:1m;", LOCKING);
    let said =
        patch(&s, "/list/sub/x", &set("<u:a xml:lang='de'>1 &lt; <b xmlns=''/></u:a><u:c/>"));
    let statuses = |said: &Response| {
        let text = said.body();
        let all: Vec<_> = all(&text, "status").into_iter().map(str::to_owned).collect();
        (said.status, all)
    };
    assert_eq!(statuses(&said), (207, vec!["HTTP/1.1 200 OK".to_owned()]), "{}", said.body());
    let a = "<n:a xmlns:n=\"u\" xml:lang=\"de\">1 &lt; <b></b></n:a>";
    let has = |path: &str| {
        let text = find(&s, path, "0", "").body();
        (text.contains(a), text.contains("<n:c xmlns:n=\"u\">"))
    };
    assert_eq!(has("/list/sub/x"), (true, true));
    // A new content, a copy, another name: the properties stay.
    assert_eq!(change(&s, "PUT /list/sub/x", "", "new"), 204);
    assert_eq!(change(&s, "COPY /list/sub/x", "Destination: /list/y\r\n", ""), 204);
    assert_eq!(change(&s, "MOVE /list/y", "Destination: /list/z\r\n", ""), 204);
    patch(&s, "/list/sub/", &set("<u:a xml:lang='de'>1 &lt; <b xmlns=''/></u:a>"));
    assert_eq!(change(&s, "COPY /list/sub/", "Destination: /list/copy/\r\n", ""), 201);
    for path in ["/list/sub/x", "/list/z", "/list/copy/x"] {
        assert_eq!(has(path), (true, true), "{path}");
    }
    assert_eq!(has("/list/copy/"), (true, false));
    assert_eq!(find(&s, "/list/", "1", "").body().matches(a).count(), 3);
    let names = "<propfind xmlns='DAV:'><propname/></propfind>";
    let names = find(&s, "/list/z", "0", names).body();
    assert!(names.contains("<n:a xmlns:n=\"u\"/>") && !names.contains("1 &lt;"), "{names}");
    patch(&s, "/list/z", "<D:remove><D:prop><u:a/><u:none/></D:prop></D:remove>");
    assert_eq!(has("/list/z"), (false, true));
    let ask = "<propfind xmlns='DAV:' xmlns:u='u'><prop><u:a/><u:c/></prop></propfind>";
    let (told, text) = (find(&s, "/list/z", "0", ask), find(&s, "/list/z", "0", ask).body());
    let not_found = "HTTP/1.1 404 Not Found".to_owned();
    assert_eq!(statuses(&told), (207, vec!["HTTP/1.1 200 OK".to_owned(), not_found]), "{text}");
    assert!(text.contains("<n:c xmlns:n=\"u\"></n:c></D:prop>"), "{text}");
}

#[test]
fn properties_that_cannot_be_changed_change_nothing() {
    let dir = with_files();
    if !keeps_attributes(&dir) {
        return;
    }
    let zone = "dav_ext_lock_zone zone=l:1m; client_body_buffer_size 64k;";
    let s = writing(dir, zone, LOCKING);
    let said = patch(&s, "/list/sub/x", &set("<u:a>1</u:a><D:getetag>x</D:getetag>"));
    let text = said.body();
    let expected = ["HTTP/1.1 403 Forbidden", "HTTP/1.1 424 Failed Dependency"];
    assert_eq!((said.status, all(&text, "status")), (207, expected.to_vec()), "{text}");
    assert!(text.contains("<D:cannot-modify-protected-property/>"), "{text}");
    assert!(!find(&s, "/list/sub/x", "0", "").body().contains("<n:a"));
    let long = set(&format!("<u:a>{}</u:a>", "x".repeat(20_000)));
    let text = patch(&s, "/list/sub/x", &long).body();
    assert_eq!(all(&text, "status"), ["HTTP/1.1 507 Insufficient Storage"], "{text}");
    s.wait_log("dav_ext: cannot change the properties of", 1);
    assert_eq!(patch(&s, "/list/none", &set("<u:a/>")).status, 404);
    assert_eq!(patch(&s, "/list/sub/x", "").status, 400);
    lock(&s, "/list/sub/x", "");
    assert_eq!(patch(&s, "/list/sub/x", &set("<u:a/>")).status, 423);
}

#[test]
fn locks_outlive_a_reload() {
    let s = locking("1m");
    lock(&s, "/list/sub/x", "");
    s.reload();
    assert_eq!(change(&s, "PUT /list/sub/x", "", ""), 423);
}

#[test]
fn options_lists_the_allowed_methods() {
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
    let s = writing(dir, "dav_ext_lock_zone zone=locks:1m timeout=10m;", &lines);
    let text = find(&s, "/files/", "1", "").body();
    assert_eq!(all(&text, "href"), ["/files/", "/files/a%20&amp;%20b.txt", "/files/sub/"]);
    let token = lock(&s, "/files/new", "");
    assert_eq!(change(&s, "PUT /files/new", "", ""), 423);
    assert_eq!(change(&s, "PUT /files/new", &format!("If: ({token})\r\n"), ""), 204);
}
