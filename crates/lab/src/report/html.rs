//! The page: a section for each finding, and what a newcomer has to know before.

use std::fmt::Write as _;

use crate::experiments::Experiment;
use crate::finding::{Finding, Part, Table};

/// A finding for the page.
pub(super) fn section(experiment: &Experiment, finding: &Finding, machine: &str) -> String {
    let mut out = String::new();
    let _ =
        writeln!(out, "<section id=\"{}\"><h2>{}</h2>", experiment.name, escape(experiment.title));
    let _ = writeln!(out, "<p class=\"question\">{}</p>", escape(experiment.question));
    let _ = writeln!(out, "<p><b>Published.</b> {}</p>", escape(experiment.published));
    if let Some(comparison) = finding.comparison() {
        out.push_str(&table(&comparison, "beside"));
    }
    for reason in finding.reasons() {
        let _ = writeln!(out, "<p class=\"because\">{}</p>", escape(reason));
    }
    out.push_str("<h3>All that was measured</h3>\n");
    for part in finding.parts() {
        match part {
            Part::Table(rows) => out.push_str(&table(rows, "")),
            Part::Remark(text) => {
                let _ = writeln!(out, "<p>{}</p>", escape(text));
            }
            Part::Picture { svg, caption } => {
                let caption = escape(caption);
                let _ = writeln!(out, "<figure>{svg}<figcaption>{caption}</figcaption></figure>");
            }
            Part::Blocks(blocks) => {
                out.push_str("<div class=\"blocks\">");
                for block in blocks {
                    let _ = writeln!(out, "<pre>{}</pre>", escape(block.trim_end()));
                }
                out.push_str("</div>\n");
            }
        }
    }
    let _ = writeln!(out, "<p class=\"machine\">{}</p></section>", escape(machine));
    out
}

/// All sections behind an introduction and a list of contents.
pub(super) fn page(sections: &[(&Experiment, String)]) -> String {
    let mut out = format!("{HEAD}{INTRODUCTION}<nav><ol>\n");
    for (experiment, _) in sections {
        let (name, title) = (experiment.name, escape(experiment.title));
        let _ = writeln!(out, "<li><a href=\"#{name}\">{title}</a></li>");
    }
    out.push_str("</ol></nav>\n");
    sections.iter().for_each(|(_, section)| out.push_str(section));
    out.push_str("</body></html>\n");
    out
}

fn table(table: &Table, class: &str) -> String {
    let mut out = format!("<div class=\"wide\"><table class=\"{class}\">\n<tr>");
    for head in table.heads() {
        let _ = write!(out, "<th>{}</th>", escape(head));
    }
    out.push_str("</tr>\n");
    for row in table.rows() {
        out.push_str("<tr>");
        for (n, cell) in row.iter().enumerate() {
            let tag = if n == 0 { "th" } else { "td" };
            let _ = write!(out, "<{tag}>{}</{tag}>", escape(cell));
        }
        out.push_str("</tr>\n");
    }
    out + "</table></div>\n"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

const HEAD: &str = "<!DOCTYPE html>
<html lang=\"en\"><head><meta charset=\"utf-8\"><title>weir lab</title>
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<style>
:root { color-scheme: light dark; --paper: #fff; --ink: #1c2430; --soft: #53647a; --rule: #d5dce4; --line: #e3e8ee;
  --mark: #1f77b4; --note: #f3f7fb; --there: #faf6ec; --here: #eef6ee; --code: #f5f7f9; --link: #155a96; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14181d; --ink: #dfe5ec; --soft: #9fb0c3; --rule: #3a444f; --line: #2a323b;
    --mark: #5aa9e0; --note: #1b2530; --there: #2b2717; --here: #19291d; --code: #1c2229; --link: #7fbcf0; }
  /* Light and dark change places, hues stay. */
  svg { filter: invert(0.91) hue-rotate(180deg); }
}
body { font: 16px/1.55 system-ui, sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em;
  color: var(--ink); background: var(--paper); }
a { color: var(--link); }
h1 { line-height: 1.2; }
h2 { margin: 0 0 .3em; }
h3 { margin: 1.6em 0 .4em; font-size: 1em; color: var(--soft); }
section { border-top: 2px solid var(--rule); margin-top: 2.5em; padding-top: 1.2em; }
.question { font-size: 1.1em; }
.because { border-left: 4px solid var(--mark); padding: .2em .8em; background: var(--note); }
.machine { color: var(--soft); font-size: .85em; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .8em 0; font-size: .92em; }
th, td { padding: .25em .8em; text-align: right; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; vertical-align: top; }
tr > :first-child { text-align: left; }
th { font-weight: 600; }
tr:first-child > th { vertical-align: bottom; }
tr:not(:first-child) > th { font-weight: 500; }
td { white-space: nowrap; }
table.beside td { white-space: normal; text-align: left; }
table.beside tr > :nth-child(2) { background: var(--there); }
table.beside tr > :nth-child(3) { background: var(--here); }
table.beside th { text-align: left; }
.blocks { display: flex; flex-wrap: wrap; gap: .8em; }
pre { background: var(--code); padding: .8em; overflow-x: auto; font-size: 11.5px; line-height: 1.35;
  margin: 0; flex: 0 1 auto; }
figure { margin: 1em 0; }
figcaption { color: var(--soft); font-size: .92em; max-width: 54em; }
svg { max-width: 100%; height: auto; }
dt { font-weight: 600; margin-top: .5em; }
dd { margin: 0 0 0 1.2em; }
</style></head><body>
";

const INTRODUCTION: &str = "<h1>Who gets the connection, and how long does it wait?</h1>
<p>A web server runs several <i>workers</i> so that it can use several CPUs, and so that one slow request does not hold
up all others. Somebody must decide which worker takes a new visitor. There are two classic ways, and each
has a flaw that was published, measured and argued about for years.</p>
<p><b>One queue</b> is the single line at a bank: whoever is free takes the next one. Nobody waits while a teller is
free, but nothing says that the tellers get the same amount of work: on Linux the same worker may be asked first
every time. <b>A queue each</b> is the tills of a supermarket: the work comes out even on the average, but who
stands behind a slow customer waits, even beside an idle till.</p>
<p>Each experiment below repeats one that was published. A table shows what its article saw, and beside it what
this machine did; a marked paragraph says where they differ and why. Below it stands all that was measured. The accept models
without a server's name are weir's: the same program with another policy, so that nothing else differs. <i>fair</i> is weir's
own: one queue, in which a worker that has more than the others does not stand.</p>
<p>The articles: <i>Why does one NGINX worker take all the load?</i> and <i>How we scaled nginx and saved the world 54 years every
day</i> (Cloudflare, 2017 and 2018), <i>Socket sharding in NGINX release 1.9.1</i> (2015), and an analysis of epoll from the kernel's source to
nginx (2024).</p>
<h3>The ways to accept</h3>
<dl>
<dt>blocking accept</dt><dd>each worker waits in the call accept() itself. The kernel serves them in the order in which they came to wait.</dd>
<dt>plain epoll</dt><dd>each worker waits for news of all its connections at once (epoll), the listening socket among them. A new
connection wakes every worker that sleeps; one gets it, the others find nothing: a thundering herd.</dd>
<dt>EPOLLEXCLUSIVE</dt><dd>the same, but only one sleeping worker is woken: the first in the kernel's list, which is always in the same
order.</dd>
<dt>re-add every N accepts</dt><dd>after N connections a worker leaves that list and comes back at its end. nginx does so with N = 16; it is
<i>nginx, one queue</i>.</dd>
<dt>shared epoll</dt><dd>one epoll instance for all workers.</dd>
<dt>mutex, accept_mutex on</dt><dd>only the worker that holds a lock listens; once nginx's default.</dd>
<dt>reuseport</dt><dd>SO_REUSEPORT: a queue for each worker. A hash of the visitor's address and port chooses one.</dd>
<dt>fair</dt><dd>EPOLLEXCLUSIVE, but a worker that has more connections or requests than the mean leaves the list, and one that took
a connection goes to its end.</dd>
</dl>
<h3>Words</h3>
<dl>
<dt>p50, p99, p99.9</dt><dd>half, 99 of 100, 999 of 1000 requests were answered within this time. The mean hides what
the unlucky ones see; p99 does not.</dd>
<dt>deviation</dt><dd>the standard deviation: how far times lie from their mean. A small one is a server on which one can
rely.</dd>
<dt>CV</dt><dd>coefficient of variation, the deviation as a share of the mean. 0: all workers did the same; 1.4 and more: one did nearly
all.</dd>
<dt>kept connections</dt><dd>those that stay open for many requests (keep-alive), as browsers' do. They stay with the worker that took
them.</dd>
<dt>requests per CPU second</dt><dd>answers for each second of CPU time that the server used. Client and server share this machine, so that
plain requests per second would also measure the client.</dd>
</dl>
";
