//! The plan that a seed draws for a course: the configuration, the faults and the clients.

use std::net::SocketAddrV4;

use weir_testkit::{Dice, number};

use crate::extras::Extras;
use crate::faults::Faults;
use crate::law::{self, Law};
use crate::quic_network;
use crate::records::Script;
use crate::reload;

/// The limits of concurrent requests of `/k/`.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// `limit_conn` of the location.
    pub all: usize,
    /// `max_conns` of each server.
    pub each: usize,
}

impl Limits {
    pub fn most(&self) -> usize {
        self.all.min(self.each * SERVERS)
    }
}

/// The HTTP/1 servers, the index of the server for scripts, and the number of HTTP/2 servers.
pub const SERVERS: usize = 2;
pub const SCRIPT_SERVER: usize = SERVERS;
pub const HTTP2_SERVERS: usize = 2;
pub const ACCEPT_QUEUES: usize = SCRIPT_SERVER + 1 + HTTP2_SERVERS;

/// A configuration.
#[derive(Clone, Debug)]
pub struct Config {
    pub text: String,
    /// The number of listening sockets.
    pub accept_queues: usize,
    pub processes: usize,
    /// Whether any loop may steal requests of any other loop.
    pub relieves: bool,
}

/// The plan of a course.
#[derive(Clone, Debug)]
pub struct CoursePlan {
    pub seed: u64,
    /// The loops of one generation, in all its processes.
    pub loops: usize,
    pub cpus: usize,
    /// The promise of the accept policy, if the course is about accepting alone.
    pub accepts: Option<Law>,
    /// Whether loops are stopped now and then.
    pub stops: bool,
    pub faults: Faults,
    pub clients: usize,
    /// Whether clients use TLS, and whether upstream servers do, except the one for scripts.
    pub tls: bool,
    pub tls_behind: bool,
    /// Whether some upstream servers use HTTP/2.
    pub http2_behind: bool,
    /// The address of the server for HTTP/3. Some clients use it.
    pub http3: Option<SocketAddrV4>,
    pub extras: Extras,
    /// The limits of concurrent requests, if there are any.
    pub limits: Option<Limits>,
    /// Whether servers and clients break connections off.
    pub broken_servers: bool,
    pub broken_clients: bool,
    /// The time after which the machine loses power.
    pub crash: Option<u64>,
    /// Whether this is the course after a power loss.
    pub again: bool,
    /// The length of the longest body.
    pub longest: u64,
    pub config: Config,
    /// The intervals before workers are killed, each counted from the kill before.
    pub kills: Vec<u64>,
    /// The configurations that replace this one, each with the interval before it.
    pub reloads: Vec<(u64, Config)>,
    /// The intervals before running workers take another site. Such a course has no scripts.
    pub changes: Vec<u64>,
}

/// The number of static files.
pub const FILES: u64 = 8;

pub fn file_len(name: u64) -> u64 {
    [0, 1, 100, 4096, 20_000, 65_537, 300_000, 1_200_000][name as usize % 8]
}

/// The number of locations that block their loop.
pub const WORK_LOCATIONS: u64 = 4;

/// The actions of Lua scripts.
pub const SCRIPTS: &[&str] = &["sleep", "capture", "ask", "leave"];

/// Scripts that use a server through a subrequest or on connections of their own. The script
/// `leave` reads half of an answer's body. The rest must not stay in the connection, since the next
/// script would read it.
const SCRIPT: &str = r#"
            local id, how = ngx.var.http_x_ask, ngx.var.uri:match("^/l/(%a+)/")
            local function answer(whose, len, body)
                ngx.header["X-Id"], ngx.header["X-Len"] = whose, len
                ngx.print(body)
            end
            if how == "sleep" then
                ngx.sleep(0.02)
                return answer(id, 0, "")
            elseif how == "capture" then
                local got = ngx.location.capture("/p/" .. id)
                ngx.status = got.status
                local h = got.header
                return answer(h["X-Id"] or h["x-id"], h["X-Len"] or h["x-len"], got.body)
            end
            local sock = ngx.socket.tcp()
            if not sock:connect("unix:HOME/u2") then return ngx.exit(502) end
            sock:send("GET /p/" .. id .. " HTTP/1.1\r\nHost: h\r\nX-Ask: " .. id .. "\r\n\r\n")
            local head, status
            repeat
                local line = sock:receive()
                if not line then return ngx.exit(502) end
                head, status = {}, tonumber(line:sub(10, 12))
                line = sock:receive()
                while line and line ~= "" do
                    local name, value = line:match("^(.-): (.*)$")
                    head[name] = value
                    line = sock:receive()
                end
                if not line then return ngx.exit(502) end
            until status >= 200
            local len = tonumber(head["X-Len"])
            if how == "leave" then len = math.floor(len / 2) end
            local body = ""
            if len > 0 then body = sock:receive(len) end
            if not body then return ngx.exit(502) end
            if head["Connection"] ~= "close" then sock:setkeepalive(10000, 4) end
            answer(head["X-Id"], len, body)
"#;

fn work(d: &mut Dice, name: u64) -> String {
    let (how, time) = (d.pick(&["sleep", "spin"]), d.pick(&[1, 1, 2, 4, 4, 10, 40]));
    format!("        location = /w{name} {{ work {how} {time}ms; return 200 short; }}\n")
}

impl CoursePlan {
    pub fn draw(seed: u64, home: &str) -> CoursePlan {
        let mut dice = Dice::salted(seed, "fate");
        let accepts = dice.one_in(3);
        if accepts && ["WEIR_CACHING", "WEIR_HTTP3"].iter().all(|name| number(name).is_none()) {
            return CoursePlan::of_accepts(seed, home, dice);
        }
        let mut plan = CoursePlan::of_all(seed, home, dice);
        let mut dice = Dice::salted(seed, "power");
        plan.crash =
            dice.one_in(5).then(|| dice.pick(&[100_000_000, 3_000_000_000, 60_000_000_000u64]));
        plan.crash = plan.crash.map(|most| dice.below(most as usize) as u64);
        plan
    }

    /// The plan of the course after the power loss.
    pub fn after_crash(self) -> CoursePlan {
        CoursePlan { crash: None, again: true, ..self }
    }

    fn of_all(seed: u64, home: &str, mut dice: Dice) -> CoursePlan {
        let d = &mut dice;
        let mut faults = Faults { words: words(seed), ..Faults::default() };
        if d.one_in(2) {
            faults.holds = d.pick(&[2, 10, 50]);
        }
        if d.one_in(3) {
            faults.cold = d.pick(&[1, 2, 10]);
        }
        if d.one_in(3) {
            faults.others = d.pick(&[3, 20, 200]);
        }
        faults.slow_disk = d.pick(&[0, 100_000, 5_000_000, 200_000_000]);
        if d.one_in(4) {
            faults.accept = d.pick(&[0, 3, 10]);
            faults.connect = d.pick(&[0, 3, 10]);
            faults.watch = d.pick(&[0, 10, 50]);
            faults.offload = d.pick(&[0, 5, 50]);
        }
        let loops = d.pick(&[1, 1, 2, 3, 4]);
        let law = law::draw(d);
        let tls = Dice::salted(seed, "tls").one_in(3);
        let tls_behind = Dice::salted(seed, "tls behind").one_in(3);
        let http2_behind = Dice::salted(seed, "http2 behind").one_in(3);
        let mut of_limits = Dice::salted(seed, "limits");
        let (all, each) = (1 + of_limits.below(6), 1 + of_limits.below(3));
        let limits = of_limits.one_in(2).then_some(Limits { all, each });
        let extras = Extras::draw(seed);
        let speaks = number("WEIR_HTTP3").is_some() && !extras.caching;
        let http3 = speaks.then(|| quic_network::address(seed));
        let law = if http3.is_some() { law.with_a_shared_queue() } else { law };
        let same =
            SharedSettings { http3, loops, home, tls, tls_behind, http2_behind, extras, limits };
        let changes = if extras.caching { Vec::new() } else { reload::changes(seed) };
        let mut of_cache = Dice::salted(seed, "of cache");
        let sound = extras.caching && !of_cache.one_in(4);
        if sound {
            (faults.accept, faults.connect, faults.watch, faults.offload) = (0, 0, 0, 0);
        }
        // Courses about caches have many clients, so their bodies are short and their configuration
        // stays. They would take long otherwise.
        let (times, longest) = if extras.caching { (4, 100_000) } else { (1, u64::MAX) };
        CoursePlan {
            seed,
            changes,
            tls,
            tls_behind,
            http2_behind,
            http3,
            extras,
            limits,
            loops,
            cpus: d.pick(&[1, 2, loops]),
            accepts: None,
            stops: false,
            faults,
            clients: (1 + d.below(30)) * times,
            broken_servers: d.one_in(2) && !sound,
            broken_clients: d.one_in(2),
            crash: None,
            again: false,
            longest: d.pick(&[3_000, 60_000, 400_000, 3_000_000]).min(longest),
            config: config(d, &law.policy(), &same),
            kills: if extras.caching { Vec::new() } else { kills(seed) },
            reloads: if extras.caching { Vec::new() } else { reloads(seed, &same) },
        }
        .without_scripts()
    }

    /// Removes scripts from a plan with changes of the site, since workers with scripts take no
    /// other site.
    fn without_scripts(mut self) -> CoursePlan {
        if !self.changes.is_empty() {
            let configs = self.reloads.iter_mut().map(|(_, config)| config);
            for config in configs.chain([&mut self.config]) {
                let text = &mut config.text;
                let (begin, end) =
                    (text.find("        location /l/ "), text.find("        location = /w"));
                if let (Some(begin), Some(end)) = (begin, end) {
                    text.replace_range(begin..end, "");
                }
            }
        }
        self
    }

    /// A plan about accepting: many clients with short requests, some of which block their loops.
    fn of_accepts(seed: u64, home: &str, mut dice: Dice) -> CoursePlan {
        let d = &mut dice;
        let mut faults = Faults { orderly: true, words: words(seed), ..Faults::default() };
        if d.one_in(4) {
            faults.accept = d.pick(&[3, 10, 50]);
            faults.watch = d.pick(&[0, 0, 20]);
        }
        let loops = 1 + d.below(5);
        let law = law::draw(d);
        let same = SharedSettings { loops, home, ..SharedSettings::default() };
        CoursePlan {
            seed,
            tls: false,
            tls_behind: false,
            http2_behind: false,
            http3: None,
            extras: Extras::default(),
            limits: None,
            loops,
            cpus: if d.one_in(4) { 1 + d.below(2) } else { loops },
            accepts: Some(law),
            stops: d.one_in(3),
            faults,
            clients: 6 + d.below(80),
            broken_servers: false,
            broken_clients: false,
            crash: None,
            again: false,
            longest: 100,
            config: config(d, &law.policy(), &same),
            kills: Vec::new(),
            reloads: Vec::new(),
            changes: Vec::new(),
        }
    }

    /// Draws how a server answers a request.
    pub fn script(&self, dice: &mut Dice) -> Script {
        let script = Script::draw(dice, self.longest, self.broken_servers);
        // Endless answers are not sent within TLS.
        Script { floods: script.floods && !self.tls_behind, ..script }
    }
}

/// The settings that all configurations of a course share.
#[derive(Default)]
struct SharedSettings<'a> {
    loops: usize,
    http3: Option<SocketAddrV4>,
    home: &'a str,
    tls: bool,
    tls_behind: bool,
    http2_behind: bool,
    extras: Extras,
    limits: Option<Limits>,
}

/// How often other loops run before a word of shared memory is read. In half of the courses, never.
fn words(seed: u64) -> usize {
    let mut dice = Dice::salted(seed, "words");
    if dice.one_in(2) { dice.pick(&[2, 10, 100]) } else { 0 }
}

/// Draws when workers are killed.
fn kills(seed: u64) -> Vec<u64> {
    let mut d = Dice::salted(seed, "kills");
    let count = if d.one_in(3) { 1 + d.below(3) } else { 0 };
    let mut one = || d.pick(&[1_000_000, 100_000_000, 2_000_000_000]);
    let most: Vec<u64> = (0..count).map(|_| one()).collect();
    most.into_iter().map(|most| d.below(most as usize) as u64).collect()
}

/// The configurations that replace the first one. They keep its limits and may change everything
/// else.
fn reloads(seed: u64, same: &SharedSettings<'_>) -> Vec<(u64, Config)> {
    let mut dice = Dice::salted(seed, "reloads");
    let d = &mut dice;
    let count = d.pick(&[0, 0, 1, 3]);
    let one = |_| {
        let after = d.pick(&[1_000_000, 100_000_000, 2_000_000_000, 30_000_000_000]);
        let law = law::draw(d);
        let policy = if same.http3.is_some() { law.with_a_shared_queue() } else { law }.policy();
        (d.below(after) as u64, config(d, &policy, same))
    };
    (0..count).map(one).collect()
}

/// Draws the number of processes, all with the same number of loops.
fn split(d: &mut Dice, loops: usize) -> usize {
    let ways: Vec<usize> = (1..=loops).filter(|n| loops.is_multiple_of(*n)).collect();
    d.pick(&ways)
}

/// A group of servers with `max_conns`, and a location with `limit_conn`.
fn limit_lines(limits: Limits, same: &SharedSettings<'_>, keepalive: &str) -> (String, String) {
    let (Limits { all, each }, home, scheme) = (limits, same.home, same.scheme());
    let server = |i: usize| format!("server unix:{home}/u{i} max_conns={each} max_fails=0;");
    let servers: Vec<String> = (0..SERVERS).map(server).collect();
    let servers = servers.join(" ");
    (
        format!(
            "    limit_conn_zone $host zone=n:64k;
    upstream k {{ zone k 64k; {servers} {keepalive} }}
"
        ),
        format!("        location /k/ {{ limit_conn n {all}; proxy_pass {scheme}://k; }}\n"),
    )
}

/// The directives of TLS with clients.
fn tls_lines(d: &mut Dice, home: &str) -> String {
    let (size, tickets) = (d.pick(&["16k", "4k", "100"]), d.pick(&["on", "off"]));
    let cache = d.pick(&["off", "shared:t:100k"]);
    format!(
        "        listen unix:{home}/s ssl;
        ssl_certificate {home}/h.pem;
        ssl_certificate_key {home}/h.key;
        ssl_buffer_size {size};
        ssl_session_tickets {tickets};
        ssl_session_cache {cache};
"
    )
}

/// The directives of TLS with upstream servers.
fn behind_lines(d: &mut Dice, home: &str) -> String {
    let (reuse, verify, named) =
        (d.pick(&["on", "on", "off"]), d.pick(&["on", "off"]), d.pick(&["on", "off"]));
    format!(
        "    proxy_ssl_session_reuse {reuse};
    proxy_ssl_verify {verify};
    proxy_ssl_trusted_certificate {home}/h.pem;
    proxy_ssl_name h;
    proxy_ssl_server_name {named};
"
    )
}

/// A group of HTTP/2 servers, and the `proxy_pass` lines of `/p/`, `/u/` and `/c/`.
fn origin_lines(d: &mut Dice, same: &SharedSettings<'_>) -> (String, [String; 3]) {
    let (home, scheme) = (same.home, same.scheme());
    let usual = format!("proxy_pass {scheme}://u;");
    if !same.http2_behind {
        return (String::new(), [usual.clone(), usual.clone(), usual]);
    }
    let keepalive =
        d.pick(&["", "keepalive 1;", "keepalive 8;", "keepalive 8; keepalive_requests 3;"]);
    let first = SCRIPT_SERVER + 1;
    let server = |i: usize| format!("server unix:{home}/u{i} max_fails=0;");
    let servers: Vec<String> = (first..first + HTTP2_SERVERS).map(server).collect();
    let group = format!("    upstream v {{ {} {keepalive} }}\n", servers.join(" "));
    let multiplexed = format!("proxy_http_version 2; proxy_pass {scheme}://v;");
    (group, [(); 3].map(|()| if d.one_in(4) { usual.clone() } else { multiplexed.clone() }))
}

impl SharedSettings<'_> {
    fn scheme(&self) -> &'static str {
        if self.tls_behind { "https" } else { "http" }
    }
}

fn config(d: &mut Dice, policy: &str, same: &SharedSettings<'_>) -> Config {
    let accept_queues = if Law::has_a_queue_each(policy) { same.loops } else { 1 };
    let (processes, balances) = (split(d, same.loops), !d.one_in(4));
    let relieves = processes == 1 && same.loops > 1 && balances;
    Config {
        text: text(d, policy, same, (processes, balances)),
        accept_queues,
        processes,
        relieves,
    }
}

fn text(
    d: &mut Dice,
    policy: &str,
    same: &SharedSettings<'_>,
    (processes, balances): (usize, bool),
) -> String {
    let &SharedSettings { loops, home, .. } = same;
    let mut http = String::new();
    let mut say = |line: String| {
        http.push_str("    ");
        http.push_str(&line);
        http.push_str(";\n");
    };
    let onoff = |d: &mut Dice| d.pick(&["on", "off"]);
    say(format!("sendfile {}", onoff(d)));
    say(format!("tcp_nopush {}", onoff(d)));
    say(format!("proxy_buffering {}", d.pick(&["on", "on", "on", "off"])));
    if d.one_in(2) {
        let (n, size) = (d.pick(&[2, 4, 8]), d.pick(&["1k", "4k", "16k"]));
        say(format!("proxy_buffers {n} {size}"));
        say(format!("proxy_buffer_size {size}"));
        say(format!("proxy_busy_buffers_size {size}"));
    }
    if d.one_in(2) {
        say(format!("proxy_max_temp_file_size {}", d.pick(&["0", "64k", "300k", "1m"])));
        if d.one_in(2) {
            say("proxy_temp_file_write_size 16k".to_owned());
        }
    }
    if d.one_in(2) {
        say(format!("client_body_buffer_size {}", d.pick(&["1k", "8k", "1m"])));
    }
    if d.one_in(3) {
        say(format!("client_body_in_file_only {}", d.pick(&["clean", "off"])));
    }
    if d.one_in(3) {
        say(format!("sendfile_max_chunk {}", d.pick(&["1k", "64k", "1m"])));
    }
    if d.one_in(3) {
        say(format!("output_buffers {}", d.pick(&["1 1k", "2 32k"])));
    }
    if d.one_in(3) {
        say(format!("keepalive_requests {}", d.pick(&["1", "2", "5"])));
    }
    if d.one_in(3) {
        say(format!("postpone_output {}", d.pick(&["0", "100"])));
    }
    if d.one_in(3) {
        say(format!("limit_rate {}", d.pick(&["100k", "1m"])));
    }
    let log = if d.one_in(2) { format!("{home}/access.log combined") } else { "off".to_owned() };
    say(format!("access_log {log}"));
    if d.one_in(3) {
        say(format!("proxy_request_buffering {}", onoff(d)));
    }
    say("proxy_http_version 1.1".to_owned());
    say("proxy_set_header Connection \"\"".to_owned());
    let cache = [
        format!("proxy_cache_lock {}", onoff(d)),
        format!("proxy_cache_valid 200 {}", d.pick(&["1s", "3s", "1m"])),
        format!("proxy_cache_use_stale {}", d.pick(&["off", "updating", "error timeout updating"])),
        format!("proxy_cache_background_update {}", onoff(d)),
        format!("proxy_cache_min_uses {}", d.pick(&["1", "1", "2"])),
    ];
    let cache = match same.extras.standard {
        false => cache.to_vec(),
        // The model of RFC 9111 does not know directives that change its rules.
        true => vec![
            cache[0].clone(),
            "proxy_cache_rules rfc9111".to_owned(),
            cache[4].clone(),
            format!("proxy_cache_convert_head {}", onoff(d)),
        ],
    };
    let cache: String = cache.iter().map(|line| format!("            {line};\n")).collect();
    let keepalive = d.pick(&["", "keepalive 1;", "keepalive 8;"]);
    let works: String = (0..WORK_LOCATIONS).map(|name| work(d, name)).collect();
    let secured = match same.tls {
        true => tls_lines(d, home),
        false => format!("        listen unix:{home}/s;\n"),
    };
    let quic = match same.http3 {
        Some(address) => quic_network::lines(d, address, home, same.tls),
        None => String::new(),
    };
    let (group, limited) = same.limits.map(|l| limit_lines(l, same, keepalive)).unwrap_or_default();
    let behind = if same.tls_behind { behind_lines(d, home) } else { String::new() };
    let (origins, [p, u, c]) = origin_lines(d, same);
    let (more, asked, sent, locations) = same.extras.lines(d, home, same.scheme());
    let many = d.pick(&["", "", "", "multi_accept on; "]);
    let balance = if balances { "" } else { "request_balance off; " };
    format!(
        "daemon off;
worker_processes {processes};
worker_threads {};
pid {home}/pid;
error_log {home}/error.log info;
events {{ worker_connections 400; accept_balance {policy}; {many}{balance}}}
http {{
    default_type text/plain;
    root {home}/files;
    client_body_temp_path {home}/body;
    proxy_temp_path {home}/proxy;
    proxy_cache_path {home}/cache keys_zone=c:1m inactive=1m{};
    upstream u {{ server unix:{home}/u0 max_fails=0; server unix:{home}/u1 max_fails=0; {keepalive} }}
{http}{more}{behind}{group}{origins}    server {{
{secured}{quic}        http2 on;
        location /s/ {{ }}
        location /p/ {{ {asked}{p} }}
        location /u/ {{ {sent}{u} client_max_body_size 0; }}
        location /c/ {{
            proxy_cache c;
{cache}            {c}
        }}
{locations}{limited}        location = /r {{ return 200 short; }}
        location /l/ {{ content_by_lua_block {{{} }} }}
{works}        location = /status {{ stub_status; access_log off; }}
    }}
}}
",
        loops / processes,
        d.pick(&["", " use_temp_path=off", " max_size=200k"]),
        SCRIPT.replace("HOME", home),
    )
}
