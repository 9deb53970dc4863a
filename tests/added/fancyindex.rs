//! fancyindex.

use std::time::{Duration, UNIX_EPOCH};

use weir_testkit::{Dir, Server};

use crate::{WEIR, example, refused, server_in};

/// A directory with files of these names, sizes and ages.
fn with_files() -> Dir {
    let dir = Dir::new();
    for (name, size, second) in [
        ("a.txt", 5, 3),
        ("B.bin", 1536, 2),
        (".hidden", 2, 1),
        ("<&>.txt", 3_000_000, 4),
        ("sub/x", 1, 0),
    ] {
        let path = dir.write(&format!("list/{name}"), vec![b'x'; size]);
        let file = std::fs::File::options().append(true).open(path).unwrap();
        // 2024-02-03 04:05:06 UTC, and so much later.
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1_706_933_106 + second)).unwrap();
    }
    std::os::unix::fs::symlink("a.txt", dir.file("list/link")).unwrap();
    dir.write("head.html", "<h1>Files in ");
    dir.write("foot.html", "<p>that was all");
    dir
}

fn page(lines: &str) -> String {
    let s = server_in(with_files(), "", &format!("location / {{ fancyindex on; {lines} }}"));
    s.get("/list/").body()
}

/// What the rows link to, in their order.
fn links(page: &str) -> Vec<&str> {
    let rows = page.split("<td class=\"link\"><a href=\"").skip(1);
    rows.map(|row| row.split('"').next().unwrap()).collect()
}

#[test]
fn a_directory_is_a_table() {
    let s = server_in(with_files(), "", "location / { fancyindex on; }");
    let answer = s.get("/list/");
    assert_eq!((answer.status, answer.header("Content-Type")), (200, Some("text/html")));
    let page = answer.body();
    // As the module writes it.
    for part in [
        "<title>Index of /list/</title>\n</head><body><h1>Index of /list/</h1>\n<table id=\"list\"><thead>",
        "<tr><td class=\"link\"><a href=\"../\">Parent directory/</a></td><td class=\"size\">-</td><td class=\"date\">-</td></tr>\n",
        "<tr><td class=\"link\"><a href=\"a.txt\" title=\"a.txt\">a.txt</a></td><td class=\"size\">                  5</td>\
         <td class=\"date\">2024-Feb-03 04:05</td></tr>\n",
        "<a href=\"%3C%26%3E.txt\" title=\"&lt;&amp;&gt;.txt\">&lt;&amp;&gt;.txt</a>",
        "<a href=\"sub/\" title=\"sub\">sub/</a></td><td class=\"size\">-</td>",
    ] {
        assert!(page.contains(part), "{part} in {page}");
    }
    assert!(page.ends_with("</tbody></table></body></html>"));
    assert_eq!(links(&page), ["../", "sub/", "%3C%26%3E.txt", "B.bin", "a.txt", "link"]);
    assert_eq!(s.ask("POST /list/", "", "").status, 403);
    assert_eq!(s.get("/none/").status, 404);
}

#[test]
fn a_list_is_sorted_as_is_asked_for_or_usual() {
    let s =
        server_in(with_files(), "", "location / { fancyindex on; fancyindex_hide_symlinks on; }");
    let asked = |query: &str| s.get(&format!("/list/?{query}")).body();
    let links_of = |query: &str, order: &str, expected: [&str; 3]| {
        let page = asked(query);
        let found = links(&page);
        let (up, sub) = (format!("../{order}"), format!("sub/{order}"));
        assert_eq!(found, [&[up.as_str(), &sub], &expected[..]].concat(), "{query}");
    };
    links_of("C=S&O=D", "?C=S&amp;O=D", ["%3C%26%3E.txt", "B.bin", "a.txt"]);
    links_of("C=S", "?C=S&amp;O=A", ["a.txt", "B.bin", "%3C%26%3E.txt"]);
    links_of("C=M&O=A", "?C=M&amp;O=A", ["B.bin", "a.txt", "%3C%26%3E.txt"]);
    links_of("C=X&O=D", "?C=N&amp;O=D", ["a.txt", "B.bin", "%3C%26%3E.txt"]);
    links_of("C=N;O=D", "", ["%3C%26%3E.txt", "B.bin", "a.txt"]);
    let lines = "fancyindex_hide_symlinks on; fancyindex_default_sort size; fancyindex_directories_first off;";
    let sizes = page(lines);
    let without: Vec<_> = links(&sizes).into_iter().filter(|link| *link != "sub/").collect();
    assert_eq!(without, ["../", "a.txt", "B.bin", "%3C%26%3E.txt"]);
    let mixed = page("fancyindex_hide_symlinks on; fancyindex_directories_first off;");
    assert_eq!(links(&mixed).last().map(|link| &**link), Some("sub/"));
    let caseless = page("fancyindex_case_sensitive off;");
    assert_eq!(links(&caseless), ["../", "sub/", "%3C%26%3E.txt", "a.txt", "B.bin", "link"]);
}

#[test]
fn what_is_shown_is_chosen() {
    let dots = page(
        "fancyindex_show_dotfiles on; fancyindex_hide_parent_dir on; fancyindex_ignore ^link$ \\.TXT$;",
    );
    assert_eq!(links(&dots), ["sub/", ".hidden", "B.bin"]);
    let short = page(
        "fancyindex_exact_size off; fancyindex_name_length 4; fancyindex_time_format '%Y <%H>';",
    );
    for part in [
        ">5 B<",
        ">1.5 KiB<",
        ">2.9 MiB<",
        "title=\"B.bin\">B..&gt;</a>",
        ">sub/</a>",
        ">2024 &lt;04&gt;<",
    ] {
        assert!(short.contains(part), "{part} in {short}");
    }
    let css = page("fancyindex_css_href '/a.css?b&c';");
    assert!(
        css.contains("<link rel=\"stylesheet\" href=\"/a.css?b&amp;c\" type=\"text/css\"/>"),
        "{css}"
    );
}

#[test]
fn times_are_those_of_the_place() {
    let dir = with_files();
    let weir = dir.write("weir", format!("#!/bin/sh\nTZ=XXX-9 exec {WEIR} \"$@\"\n"));
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&weir, mode).unwrap();
    let conf = "events { }
        http { server { listen 127.0.0.1:%%PORT%%;
            location /here/ { alias %%DIR%%/list/; fancyindex on; fancyindex_localtime on; }
            location /utc/ { alias %%DIR%%/list/; fancyindex on; }
            location /plain/ { alias %%DIR%%/list/; autoindex on; autoindex_localtime on; }
            location /plain-utc/ { alias %%DIR%%/list/; autoindex on; }
        } }";
    let server = Server::start_in(dir, &weir.display().to_string(), conf);
    for (path, time) in [
        ("/here/", "2024-Feb-03 13:05"),
        ("/utc/", "2024-Feb-03 04:05"),
        ("/plain/", "03-Feb-2024 13:05"),
        ("/plain-utc/", "03-Feb-2024 04:05"),
    ] {
        let page = server.get(path).body();
        let row = page.lines().find(|line| line.contains("a.txt")).unwrap_or_default();
        assert!(row.contains(time), "{path}: {row}");
    }
}

#[test]
fn a_header_and_a_footer_of_the_sites_own() {
    let own = page("fancyindex_header /head.html; fancyindex_footer /foot.html;");
    assert!(own.starts_with("<h1>Files in /list/</h1>\n<table"), "{own}");
    assert!(own.ends_with("</tbody></table><p>that was all"), "{own}");
    let local = page(
        "fancyindex_header %%DIR%%/head.html local; fancyindex_footer %%DIR%%/foot.html local; fancyindex_show_path off;",
    );
    assert!(
        local.starts_with("<h1>Files in <table") && local.ends_with("<p>that was all"),
        "{local}"
    );
    // What is not there is replaced by what is usual.
    let none = page("fancyindex_header /none; fancyindex_footer /none;");
    assert!(
        none.starts_with("<!DOCTYPE html>") && none.ends_with("</table></body></html>"),
        "{none}"
    );
    for (line, text) in [
        (
            "fancyindex_header /none/at/all local;",
            "cannot open file \"/none/at/all\" (2: No such file",
        ),
        ("fancyindex_footer /a other;", "invalid header/footer kind \"other\""),
        ("fancyindex_default_sort age;", "invalid value \"age\""),
    ] {
        let said = refused(line);
        assert!(said.contains(text), "{line}: {said}");
    }
}

#[test]
fn the_pages_example_lists() {
    let lines = example("fancyindex\n").replace("/srv/files/", "%%DIR%%/list/");
    let dir = with_files();
    dir.write("list/.theme/footer.html", "<p>ours");
    let s: Server = server_in(dir, "", &lines);
    let page = s.get("/files/").body();
    assert_eq!(links(&page), ["../", "sub/", "%3C%26%3E.txt", "a.txt", "link", "B.bin"]);
    assert!(page.ends_with("<p>ours"), "{page}");
}
