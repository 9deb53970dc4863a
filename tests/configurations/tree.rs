//! Draws configurations: directives of one or two families, outside and inside every kind of block.

use weir_testkit::Dice;

use crate::drawn::DRAWN;
use crate::families::Choice;

/// The blocks that lines are drawn into, by the letter that [`Choice::contexts`] has for them.
const PLACES: &[(char, &str)] = &[
    ('h', "HTTP"),
    ('s', "SERVER"),
    ('S', "SERVER-IF"),
    ('l', "PREFIX"),
    ('l', "NESTED"),
    ('l', "NESTED-REGEX"),
    ('l', "EXACT"),
    ('l', "REGEX"),
    ('l', "AROUND-IF"),
    ('i', "IF"),
    ('l', "AROUND-LIMIT"),
    ('e', "LIMIT"),
];

const SKELETON: &str = r#"
    events { }
    http {
        server_tokens off;
        log_format seen '$server_name|$request|$status|$size|$uri|[$args]|$request_filename|$document_root|$realpath_root|'
            '$content_type|$content_length|$remote_user|$remote_addr|$sent_http_location|$sent_http_last_modified|'
            '$request_completion|$server_protocol|$scheme|$https|$http2|$ssl_protocol|$ssl_alpn_protocol|$upstream_status|$is_args|$limit_rate|$http_x|$v';
        access_log %%DIR%%/logs/seen.log seen;
        # Not of pages that are signed, nor of bodies that two programs may cut or compress in their own ways.
        map "$status$sent_http_content_encoding$sent_http_transfer_encoding" $size { default -; ~^2..$ $body_bytes_sent; }
        map $sent_http_content_type $expires_by_type { default off; text/html 2h; ~^text/p -1; }
        map $arg_s $mapped { default no; 1 yes; }
        map $host $back { default back; }
        geo $geo { default far; 1.2.3.0/24 near; }
        split_clients "$uri" $split { 50% one; * two; }
        proxy_cache_path %%DIR%%/stored keys_zone=stored:1m;
        limit_req_zone $uri zone=rate:64k rate=1r/m; limit_req_zone $arg_s zone=other:64k rate=1r/m;
        limit_conn_zone $uri zone=conns:64k; limit_conn_zone $arg_s zone=others:64k;
        upstream back { server %%BACK%%; }
        HTTP
        server {
            listen 127.0.0.1:%%PORT%%; server_name s1.example;
            listen 127.0.0.1:%%PORT1%% ssl%%OLD%%; listen 127.0.0.1:%%PORT2%%%%OLD%%; %%NEW%%
            ssl_protocols TLSv1.2 TLSv1.3; ssl_certificate %%DIR%%/self.pem; ssl_certificate_key %%DIR%%/self.key;
            set $answered ""; set $v ""; set $w "";
            SERVER
            if ($arg_s) { SERVER-IF }
            location / { root %%DIR%%/html; }
            location /p/ {
                PREFIX
                location /p/n/ { NESTED }
                location ~ \.html$ { NESTED-REGEX }
            }
            location = /e.txt { EXACT }
            location ~ ^/r/ { REGEX }
            location /i/ { AROUND-IF if ($arg_i) { IF } }
            location /l/ { AROUND-LIMIT limit_except GET { LIMIT } }
            location @named { return 200 "named $uri $status"; }
            location /yes { internal; auth_request off; auth_basic off; return 204; }
            location /no { internal; auth_request off; auth_basic off; return 401; }
            location /forbid { internal; auth_request off; auth_basic off; return 403; }
        }
    }
"#;

/// A configuration as a list of lines, so that it can be made smaller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The block, and the line that stands in it.
    pub lines: Vec<(&'static str, String)>,
}

impl Tree {
    /// One drawn from a seed; for an old nginx without what it does otherwise.
    pub fn draw(dice: &mut Dice, old: bool) -> Tree {
        let mut choices: Vec<&Choice> = Vec::new();
        let families = if old { &DRAWN.old } else { &DRAWN.all };
        for _ in 0..=dice.below(2) {
            let family = &families[dice.below(families.len())];
            // A few of its directives, so that each meets itself at several levels.
            for _ in 0..2 + dice.below(3) {
                choices.push(&family[dice.below(family.len())]);
            }
        }
        Tree { lines: spread(dice, &choices, 45) }
    }

    /// Its text, where the upstream listens at `back`; an old nginx says at the listener that it speaks HTTP/2.
    pub fn text(&self, back: &str, old: bool) -> String {
        let mut out = String::new();
        for row in SKELETON.lines() {
            let mut row = row.to_owned();
            // The longer names first: one may begin with another.
            let mut places: Vec<&str> = PLACES.iter().map(|(_, place)| *place).collect();
            places.sort_by_key(|place| std::cmp::Reverse(place.len()));
            for place in places {
                let Some(at) = find_word(&row, place) else { continue };
                let said: Vec<&str> = self.of(place).collect();
                row.replace_range(at..at + place.len(), &said.join(" "));
            }
            out += &row;
            out.push('\n');
        }
        let (of_old, of_new) = if old { (" http2", "") } else { ("", "http2 on;") };
        out.replace("%%BACK%%", back).replace("%%OLD%%", of_old).replace("%%NEW%%", of_new)
    }

    fn of<'a>(&'a self, place: &'a str) -> impl Iterator<Item = &'a str> {
        self.lines.iter().filter(move |(at, _)| *at == place).map(|(_, line)| line.as_str())
    }

    /// The line that a program refuses, by what it says of it.
    pub fn refused(&self, says: &str) -> usize {
        let number = says.rsplit("nginx.conf:").next().unwrap_or_default();
        let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
        let row =
            digits.parse::<usize>().ok().and_then(|n| SKELETON.lines().nth(n.checked_sub(1)?));
        let stands = |place: &str| row.is_some_and(|row| find_word(row, place).is_some());
        let says = says.split("[emerg]").last().unwrap_or_default();
        let named =
            |line: &str| line.split([' ', ';']).next().is_some_and(|name| says.contains(name));
        let at = |named: &dyn Fn(&str) -> bool| {
            self.lines.iter().rposition(|(place, line)| stands(place) && named(line))
        };
        at(&named).or_else(|| at(&|_| true)).unwrap_or(self.lines.len() - 1)
    }

    /// The same without one line.
    pub fn without(&self, n: usize) -> Tree {
        let mut lines = self.lines.clone();
        lines.remove(n);
        Tree { lines }
    }
}

/// Where a block's name stands as a word of its own.
fn find_word(row: &str, word: &str) -> Option<usize> {
    let at = row.find(word)?;
    let free = |c: Option<char>| c.is_none_or(|c| c == ' ');
    let ends = free(row[at + word.len()..].chars().next());
    (ends && free(row[..at].chars().next_back())).then_some(at)
}

/// Lines of the choices, each in some of the places where it may stand.
fn spread(dice: &mut Dice, choices: &[&Choice], percent: usize) -> Vec<(&'static str, String)> {
    let mut lines: Vec<(&'static str, String)> = Vec::new();
    for (letter, place) in PLACES {
        for choice in choices {
            if choice.contexts.contains(*letter) && dice.below(100) < percent {
                let value = choice.values[dice.below(choice.values.len())];
                let line = line(choice, value);
                let again = lines.iter().any(|(at, l)| at == place && *l == line);
                if !again {
                    lines.push((place, line));
                }
            }
        }
    }
    lines
}

/// A choice's line with one of its values.
pub fn line(choice: &Choice, value: &str) -> String {
    let end = if value.ends_with('}') { "" } else { ";" };
    format!("{} {value}{end}", choice.directive).replace(" ;", ";")
}

/// A block of [`PLACES`] by its name, with the letter that choices have for it.
pub fn place(name: &str) -> (char, &'static str) {
    *PLACES.iter().find(|(_, place)| *place == name).expect("a block of the skeleton")
}
