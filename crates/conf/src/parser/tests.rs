use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> ConfigTree {
    read_text(Path::new("/nowhere/nginx.conf"), text.as_bytes())
}

fn broken(text: &str) -> String {
    let tree = parse(text);
    let error = tree.broken.expect(text);
    tree.sources.first_line(&error)
}

/// A directory that is removed with the test.
struct TestDir(PathBuf);

impl TestDir {
    fn new(name: &str, files: &[(&str, &str)]) -> TestDir {
        let dir = std::env::temp_dir().join(format!("weir-conf-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        for (name, text) in files {
            let path = dir.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        TestDir(dir)
    }

    fn read(&self) -> ConfigTree {
        read(&self.0.join("nginx.conf"), None)
    }

    fn broken(&self) -> String {
        let tree = self.read();
        let error = tree.broken.expect("an error");
        tree.sources.first_line(&error).replace(self.0.to_str().unwrap(), "D")
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn names(list: &[Directive]) -> Vec<String> {
    list.iter().map(|d| d.name.lossy().into_owned()).collect()
}

#[test]
fn blocks_nest() {
    let tree = parse("user x;\nhttp {\n server { listen 80; }\n}\n");
    assert!(tree.broken.is_none());
    let http = &tree.main[1];
    assert_eq!((http.end.line, http.close.line), (2, 4));
    let server = &http.block()[0];
    assert_eq!(server.block()[0].arg(0).unwrap().str(), Some("80"));
}

#[test]
fn messages_of_nginx() {
    for (text, expected) in [
        ("a;\n}", "unexpected \"}\" in /nowhere/nginx.conf:2"),
        ("a {\n b;\n", "unexpected end of file, expecting \"}\" in /nowhere/nginx.conf:3"),
        ("map a b {\n c { }\n}", "unexpected \"{\" in /nowhere/nginx.conf:2"),
        (
            "types {\n include; }",
            "invalid number of arguments in \"include\" directive in /nowhere/nginx.conf:2",
        ),
        (
            "include a b;",
            "invalid number of arguments in \"include\" directive in \
          /nowhere/nginx.conf:1",
        ),
        (
            "http {\n include gone;\n}",
            "open() \"/nowhere/gone\" failed (2: No such file or \
          directory) in /nowhere/nginx.conf:2",
        ),
    ] {
        assert_eq!(broken(text), expected);
    }
}

#[test]
fn hints_say_where_to_look() {
    let hint = |text: &str| parse(text).broken.and_then(|e| e.hint).unwrap_or_default();
    assert_eq!(hint("a {\n b {\n c;"), "the block of \"b\" in line 2 is not closed");
    let lua = "a {\n x_by_lua_block {\n c;";
    assert_eq!(hint(lua), "the block of \"x_by_lua_block\" in line 2 is not closed");
    assert_eq!(hint("a 'b;\n"), "this quote is not closed");
    let inner = hint("a {\n b {\n  c;\n}\n");
    assert!(
        inner.starts_with("the block of \"b\" in line 2 is not closed: the \"}\" in line 4"),
        "{inner}"
    );
    // A file without indentation is not judged by it.
    assert_eq!(hint("a {\nb {\nc;\n}\n"), "the block of \"a\" in line 1 is not closed");
    let error = parse("a;\nb c\n\n").broken.unwrap();
    assert_eq!((error.at.unwrap().line, error.mark.unwrap().line), (4, 2));
}

#[test]
fn directives_before_an_error_are_kept() {
    let tree = parse("a;\nb {\n c;\n d\n}");
    assert!(tree.broken.is_some());
    assert_eq!(names(&tree.main), ["a", "b"]);
    assert_eq!(names(tree.main[1].block()), ["c"]);
}

#[test]
fn lines_of_free_blocks_are_directives() {
    let tree = parse("types { text/html html htm; } map $a $b { default 0; include 1 2; ~x '' ; }");
    assert!(tree.broken.is_none());
    let types = tree.main[0].block();
    assert_eq!((names(types), types[0].args.len()), (vec!["text/html".into()], 2));
    assert_eq!(names(tree.main[1].block()), ["default", "include", "~x"]);
}

#[test]
fn lua_bodies_are_kept_as_they_are() {
    let tree = parse("content_by_lua_block { ngx.say('}') -- {\n }\nb;");
    assert!(tree.broken.is_none());
    let lua = &tree.main[0];
    assert_eq!(lua.body, DirectiveBody::Raw(b" ngx.say('}') -- {\n ".to_vec()));
    assert_eq!(lua.close.line, 2);
    assert_eq!(tree.main[1].name.pos.line, 3);
}

#[test]
fn globals_come_first_and_hold_no_blocks() {
    let dir = TestDir::new("globals", &[("nginx.conf", "b;")]);
    let path = dir.0.join("nginx.conf");
    assert_eq!(names(&read(&path, Some("a;")).main), ["a", "b"]);
    let first = |globals| {
        let tree = read(&path, Some(globals));
        tree.sources.first_line(&tree.broken.unwrap())
    };
    assert_eq!(first("http {"), "block directives are not supported in -g option in command line");
    assert_eq!(first("a"), "unexpected end of parameter, expecting \";\" in command line");
    assert_eq!(first("}"), "unexpected \"}\" in command line");
}

#[test]
fn a_missing_main_file_has_no_place() {
    let tree = read(Path::new("/nowhere/nginx.conf"), None);
    let error = tree.broken.unwrap();
    assert_eq!(
        tree.sources.first_line(&error),
        "open() \"/nowhere/nginx.conf\" failed (2: No such file or directory)"
    );
}

#[test]
fn includes_are_relative_to_the_main_file_and_sorted() {
    let dir = TestDir::new(
        "include",
        &[
            ("nginx.conf", "include sub/a.conf; include sites/*; include none/*.conf;"),
            ("sub/a.conf", "a; include sub/b.conf;"),
            ("sub/b.conf", "b;"),
            ("sites/20", "y;"),
            ("sites/10", "x;"),
            ("sites/.hidden", "z;"),
        ],
    );
    let tree = dir.read();
    assert!(tree.broken.is_none());
    assert_eq!(names(&tree.main), ["a", "b", "x", "y"]);
    assert_eq!(tree.sources.iter().count(), 5);
}

#[test]
fn lines_may_be_included() {
    let dir = TestDir::new(
        "lines",
        &[("nginx.conf", "map $a $b { include m; } b;"), ("m", "include x y;\n1 2;")],
    );
    assert_eq!(names(dir.read().main[0].block()), ["include", "1"]);
}

#[test]
fn a_block_ends_in_the_file_where_it_began() {
    let dir = TestDir::new("ends", &[("nginx.conf", "http { include a; "), ("a", "b;\n}")]);
    assert_eq!(dir.broken(), "unexpected \"}\" in D/a:2");
    let dir = TestDir::new("begins", &[("nginx.conf", "include a;"), ("a", "http {\n")]);
    assert_eq!(dir.broken(), "unexpected end of file, expecting \"}\" in D/a:2");
}

#[test]
fn a_file_that_includes_itself_ends() {
    let dir = TestDir::new("itself", &[("nginx.conf", "include *.conf;")]);
    assert_eq!(dir.broken(), "includes are nested more than 100 deep in D/nginx.conf:1");
    let dir = TestDir::new("loop", &[("nginx.conf", "a {\n include *.conf;\n}")]);
    assert!(dir.broken().starts_with("includes are nested"));
}

#[test]
fn a_directory_cannot_be_read() {
    let dir = TestDir::new("directory", &[("nginx.conf", "include sub*;"), ("sub/x", "")]);
    let tree = dir.read();
    let error = tree.broken.unwrap();
    assert_eq!((error.level, error.at), (Level::Crit, None));
    assert!(error.message.ends_with("failed (21: Is a directory)"), "{}", error.message);
}

#[test]
fn deep_blocks_are_refused() {
    assert!(broken(&"a {".repeat(100_000)).starts_with("blocks are nested more than 200 deep"));
}

/// Prints a tree so that reading it again gives the same tree.
fn print(list: &[Directive], out: &mut Vec<u8>) {
    for directive in list {
        for word in std::iter::once(&directive.name).chain(&directive.args) {
            out.push(b'"');
            for &byte in &word.bytes {
                if matches!(byte, b'"' | b'\\') {
                    out.push(b'\\');
                }
                out.push(byte);
            }
            out.extend_from_slice(b"\" ");
        }
        match &directive.body {
            DirectiveBody::None => out.push(b';'),
            DirectiveBody::Raw(text) => {
                out.push(b'{');
                out.extend_from_slice(text);
                out.push(b'}');
            }
            DirectiveBody::Block(list) => {
                out.extend_from_slice(b"{\n");
                print(list, out);
                out.push(b'}');
            }
        }
        out.push(b'\n');
    }
}

/// The words alone: places differ between two writings of the same tree.
fn plain(list: &[Directive]) -> Vec<(Vec<&[u8]>, usize)> {
    let mut out = Vec::new();
    for d in list {
        let words = std::iter::once(&d.name).chain(&d.args).map(|w| w.bytes.as_slice()).collect();
        out.push((words, d.block().len()));
        out.extend(plain(d.block()));
    }
    out
}

fn any_word() -> impl Strategy<Value = Word> {
    let pos = Pos { file: 0, line: 1, column: 1 };
    prop::collection::vec(any::<u8>(), 0..12).prop_map(move |bytes| Word {
        bytes,
        pos,
        quoted: true,
    })
}

fn any_directive() -> impl Strategy<Value = Directive> {
    let pos = Pos { file: 0, line: 1, column: 1 };
    let make = move |name: Word, args: Vec<Word>, body| Directive {
        name,
        args,
        body,
        end: pos,
        close: pos,
    };
    let args = || prop::collection::vec(any_word(), 0..4);
    let leaf = (any_word(), args()).prop_map(move |(n, a)| make(n, a, DirectiveBody::None));
    leaf.prop_recursive(3, 20, 4, move |inner| {
        (any_word(), args(), prop::collection::vec(inner, 0..4))
            .prop_map(move |(n, a, list)| make(n, a, DirectiveBody::Block(list.into())))
    })
}

/// Text made of the pieces that the grammar is about.
fn any_text() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        ";",
        "{",
        "}",
        "\"",
        "'",
        "\\",
        "$",
        "${",
        "#",
        "\n",
        " ",
        ")",
        "a",
        "server",
        "map",
        "include",
        "include x;",
        "include *;",
        "x_by_lua_block {",
        "[[",
        "]]",
        "--",
    ]);
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn a_printed_tree_reads_the_same(list in prop::collection::vec(any_directive(), 0..5)) {
        let mut text = Vec::new();
        print(&list, &mut text);
        let tree = read_text(Path::new("/nowhere/nginx.conf"), &text);
        prop_assert!(tree.broken.is_none());
        prop_assert_eq!(plain(&tree.main), plain(&list));
    }

    #[test]
    fn any_bytes_end(text in prop::collection::vec(any::<u8>(), 0..600)) {
        let tree = read_text(Path::new("/nowhere/nginx.conf"), &text);
        if let Some(error) = &tree.broken {
            tree.sources.explain(error);
        }
    }

    #[test]
    fn any_pieces_end(text in any_text()) {
        let tree = parse(&text);
        let error = crate::check(&tree, &|_, _| true);
        if let Err(error) = &error {
            tree.sources.explain(error);
        }
    }
}
