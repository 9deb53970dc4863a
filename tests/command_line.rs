//! The command line: versions, options, tools, the manual, and shell completion.
//!
//! A server alone has tests of its own here: `cargo test -p weir --no-default-features --test command_line`, also with
//! `--features manual`.

use std::process::Output;

use weir_testkit::run;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn versions_are_for_people_and_for_tools() {
    let text = stderr(&run(WEIR, ["-v"]));
    assert!(text.starts_with("weir version: weir/") && text.contains("\nnginx version: nginx/1."));
    let text = stderr(&run(WEIR, ["-V"]));
    assert!(text.contains("\nconfigure arguments: "));
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
        assert!(page.contains(&format!("weir\\-{tool}(1)")), "{tool}: {page}");
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
    if cfg!(feature = "tools") {
        assert_eq!(complete("weir ben", 1), "bench\n");
        assert_eq!(complete("weir bench --conne", 2), "--connections --connect-first\n");
    }
}
