use super::Conf;
use super::code::{FileTest, Op, Test, Then};
use crate::modules::rewrite::CONF;
use crate::trial::{complaint, site};

/// The code of the only location of a server.
fn code(location: &str) -> Vec<Op> {
    let site = site(&format!("server {{ location / {{ {location} }} }}")).unwrap();
    let found =
        site.locations().iter().find(|l| l.name == b"/" && !CONF.of(&l.conf).code.is_empty());
    found.map(|l| CONF.of(&l.conf).code.clone()).unwrap_or_default()
}

fn test_of(condition: &str) -> Test {
    match code(&format!("if ({condition}) {{ break; }}")).into_iter().next() {
        Some(Op::If { test, .. }) => test,
        other => panic!("{other:?}"),
    }
}

#[test]
fn complaints_are_those_of_nginx() {
    for (text, complaint_of_it) in [
        ("return 1000;", "invalid return code \"1000\""),
        ("return x;", "invalid return code \"x\""),
        ("return http://a b;", "invalid return code \"http://a\""),
        ("rewrite ^ '';", "empty replacement"),
        ("rewrite ^ /x forever;", "invalid parameter \"forever\""),
        ("set x 1;", "invalid variable name \"x\""),
        ("set $ 1;", "invalid variable name \"$\""),
        ("set $uri 1;", "the duplicate \"uri\" variable"),
        ("if ($args ~ (?<uri>.)) { }", "the duplicate \"uri\" variable"),
        ("if ($args ~ (?<ssl_cipher>.)) { set $proxy_host 1; }", ""),
        ("if $a { }", "invalid condition \"$a\""),
        ("if ($arg_a { }", "invalid condition \"$arg_a\""),
        ("if ( { }", "invalid condition \"(\""),
        ("if () { }", "invalid condition \")\""),
        ("if ( ) { }", "invalid condition \")\""),
        ("if (a = b) { }", "invalid condition \"a\""),
        ("if ($arg_a = b c) { }", "invalid condition \"$arg_a\""),
        ("if ($arg_a == b) { }", "unexpected \"==\" in condition"),
        ("if (-z /x) { }", "invalid condition \"-z\""),
        ("if (-f) { }", "invalid condition \"-f\""),
        ("if ($nobody) { }", "unknown \"nobody\" variable"),
    ] {
        assert_eq!(complaint(text), complaint_of_it, "{text}");
    }
}

#[test]
fn brackets_may_be_words_of_their_own() {
    for text in ["$arg_a", " $arg_a ", " $arg_a", "$arg_a "] {
        assert!(matches!(test_of(text), Test::True(_)), "{text}");
    }
}

#[test]
fn each_operator_is_known() {
    assert!(matches!(test_of("$arg_a = 1"), Test::Equal { not: false, .. }));
    assert!(matches!(test_of("$arg_a != 1"), Test::Equal { not: true, .. }));
    assert!(matches!(test_of("$arg_a ~ x"), Test::Match { not: false, .. }));
    assert!(matches!(test_of("$arg_a !~* x"), Test::Match { not: true, .. }));
    for (text, kind, not) in [
        ("-f /x", FileTest::Plain, false),
        ("!-f /x", FileTest::Plain, true),
        ("-d /x", FileTest::Directory, false),
        ("!-e /x", FileTest::Exists, true),
        ("-x /x", FileTest::Executable, false),
    ] {
        let test = test_of(text);
        assert!(
            matches!(test, Test::File { kind: k, not: n, .. } if (k, n) == (kind, not)),
            "{text}: {test:?}"
        );
    }
}

#[test]
fn lines_and_conditions_stay_in_order() {
    let code = code("set $a 1; if ($a) { set $b 2; break; } return 200;");
    assert!(matches!(
        code.as_slice(),
        [
            Op::Set { .. },
            Op::If { len: 2, block: Some(_), .. },
            Op::Set { .. },
            Op::Break,
            Op::Return { status: 200, text: None, .. }
        ]
    ));
}

#[test]
fn a_replacement_decides_on_the_query() {
    let rewrite = |text: &str| match code(&format!("rewrite ^ {text};")).into_iter().next() {
        Some(Op::Rewrite(rewrite)) => *rewrite,
        other => panic!("{other:?}"),
    };
    let plain = rewrite("/x");
    assert!(plain.keep_args && plain.args.is_none() && plain.then == Then::Go);
    let dropped = rewrite("/x?");
    assert!(!dropped.keep_args && dropped.args.is_none());
    let added = rewrite("/x?a=1 last");
    assert!(added.keep_args && added.args.is_some() && added.then == Then::Last);
    let url = rewrite("http://a/?q break");
    assert!(url.args.is_none() && url.has_query && url.then == Then::Redirect(302));
    assert_eq!(rewrite("/x permanent").then, Then::Redirect(301));
}

#[test]
fn only_file_tests_make_the_code_wait() {
    let waits = |text: &str| {
        let site = site(&format!("server {{ location / {{ {text} }} }}")).unwrap();
        site.locations().iter().any(|l| CONF.of(&l.conf).tests_files)
    };
    assert!(!waits("if ($arg_a) { return 200; }"));
    assert!(waits("if (-f /x) { return 200; }"));
    assert!(waits("if (-f /x) { } if ($arg_a) { } "));
}

#[test]
fn code_is_not_inherited_and_switches_are() {
    let site = site("rewrite_log on; server { set $a 1; location / { } }").unwrap();
    let inner = site.locations().iter().find(|l| l.name == b"/").unwrap();
    let Conf { code, log, .. } = CONF.of(&inner.conf);
    assert!(code.is_empty() && *log);
}
