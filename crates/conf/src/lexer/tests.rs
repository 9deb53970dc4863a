use super::*;

/// The statements of a text: words, then what ended them.
fn statements(text: &str) -> Result<Vec<(Vec<String>, StatementEnd)>, String> {
    let mut lexer = Lexer::new(text.as_bytes(), 0, false);
    let mut out = Vec::new();
    loop {
        let s = lexer.statement().map_err(|e| format!("{}:{}", e.message, line(&e)))?;
        let words = s.words.iter().map(|w| w.lossy().into_owned()).collect();
        out.push((words, s.stop));
        if s.stop == StatementEnd::EndOfText {
            return Ok(out);
        }
    }
}

fn line(error: &Error) -> u32 {
    error.at.map_or(0, |p| p.line)
}

fn words(text: &str) -> Vec<String> {
    statements(text).unwrap()[0].0.clone()
}

fn message(text: &str) -> String {
    statements(text).unwrap_err()
}

#[test]
fn words_and_stops() {
    let got = statements("a b;\nc { d; } # e ; {\n").unwrap();
    let stops: Vec<StatementEnd> = got.iter().map(|(_, s)| *s).collect();
    use StatementEnd::*;
    assert_eq!(stops, [Semicolon, Open, Semicolon, Close, EndOfText]);
    assert_eq!(got[0].0, ["a", "b"]);
}

#[test]
fn quotes_and_escapes() {
    assert_eq!(words(r#"a "b c" 'd "e' "";"#), ["a", "b c", "d \"e", ""]);
    assert_eq!(words(r#"a "\t\n\r\"\'\\" '\x\$\.';"#), ["a", "\t\n\r\"'\\", "\\x\\$\\."]);
    assert_eq!(words(r"a \.php$ b\ c d\;e \{;"), ["a", "\\.php$", "b\\ c", "d\\;e", "\\{"]);
    assert_eq!(words("a \"line\nline\";"), ["a", "line\nline"]);
    assert_eq!(words("a b\"c\"d;"), ["a", "b\"c\"d"]);
}

#[test]
fn braces_of_variables_do_not_open() {
    assert_eq!(words("a ${b}c x${y}z;"), ["a", "${b}c", "x${y}z"]);
    assert_eq!(words("a b{"), ["a", "b"]);
    assert_eq!(words("a $b{"), ["a", "$b"]);
}

#[test]
fn a_parenthesis_may_follow_a_quote() {
    assert_eq!(words("if ($a = \"b\") {"), ["if", "($a", "=", "b", ")"]);
}

#[test]
fn a_hash_inside_a_word_is_no_comment() {
    assert_eq!(words("a b#c #d\n e;"), ["a", "b#c", "e"]);
}

#[test]
fn messages_of_nginx() {
    assert_eq!(message("\n;"), "unexpected \";\":2");
    assert_eq!(message("{"), "unexpected \"{\":1");
    assert_eq!(message("a\n}"), "unexpected \"}\":2");
    assert_eq!(message("a \"b\"c;"), "unexpected \"c\":1");
    let cut_off = "unexpected end of file, expecting \";\" or \"}\"";
    assert_eq!(message("a b"), format!("{cut_off}:1"));
    assert_eq!(message("a\nb\n"), format!("{cut_off}:3"));
    assert_eq!(message("a 'b;\n\n"), format!("{cut_off}:3"));
    assert_eq!(message("a \\"), format!("{cut_off}:1"));
    assert_eq!(message("a 'b'"), format!("{cut_off}:1"));
}

#[test]
fn the_command_line_has_its_own_end() {
    let error = Lexer::new(b"daemon off", 0, true).statement().unwrap_err();
    assert_eq!(error.message, "unexpected end of parameter, expecting \";\"");
}

#[test]
fn words_have_a_longest_length() {
    let fits = format!("\na {};", "x".repeat(4095));
    assert_eq!(words(&fits)[1].len(), 4095);
    let long = format!("\na {};", "x".repeat(4096));
    assert_eq!(message(&long), "too long parameter \"xxxxxxxxxx...\" started:2");
    let quote = format!("a\n\n\"{}\";", "y".repeat(5000));
    let expected = "too long parameter, probably missing terminating \"\"\" character:3";
    assert_eq!(message(&quote), expected);
    let short = format!("a '{}", "y".repeat(4096));
    assert!(message(&short).starts_with("unexpected end of file"));
}

#[test]
fn places() {
    let mut lexer = Lexer::new(b"a;\n  bc 'd'\n;", 7, false);
    lexer.statement().unwrap();
    let s = lexer.statement().unwrap();
    assert_eq!(s.words[0].pos, Pos { file: 7, line: 2, column: 3 });
    assert_eq!(s.words[1].pos, Pos { file: 7, line: 2, column: 6 });
    assert_eq!(s.at, Pos { file: 7, line: 3, column: 1 });
}
