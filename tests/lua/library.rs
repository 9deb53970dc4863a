//! The library of scripts: texts, patterns, shared dictionaries, all of LuaJIT.

use weir_testkit::Server;

use super::{WEIR, said, server, server_with};

#[test]
fn texts_and_digests() {
    let script = r#"
        for kind = 0, 6 do ngx.print(ngx.escape_uri("!'()*~ \"%+/?&=#\255", kind), " ") end
        ngx.say(ngx.encode_args({ ["!"] = { "'", nil, "(*)" } }), " ", ngx.encode_args({ a = { b = 1 } }))
        ngx.say(ngx.escape_uri("a b/c?&"), " ", ngx.unescape_uri("a+b%2fc"), " ", ngx.escape_uri("/a b", 0))
        ngx.say(ngx.encode_base64("hello"), ngx.encode_base64("a", true), ngx.decode_base64("aGVsbG8="), ngx.decode_base64("a!"))
        ngx.say(ngx.md5("abc"), " ", #ngx.md5_bin("abc"), #ngx.sha1_bin("abc"), #ngx.hmac_sha1("k", "t"))
        ngx.say(ngx.crc32_short("123456789"), " ", ngx.quote_sql_str("it's"))
        ngx.say(ngx.http_time(1e9), "; ", ngx.cookie_time(1e9), "; ", ngx.parse_http_time(ngx.http_time(1e9)))
        ngx.say(ngx.decode_args("a=1&a=2").a[2], ngx.decode_args("a&b=").b, ngx.decode_args("a=b%20c+d").a)
        ngx.say(#ngx.utctime(), #ngx.today(), ngx.time() <= ngx.now() + 1)"#;
    let expected = "!'()*~%20\"%25+/%3F&=%23%FF !'()*~%20\"%25%2B/%3F&=%23%FF \
        !'()*~%20%22%25%2B%2F%3F%26%3D%23%FF !%27()*~%20%22%25+/?&=%23%FF !%27()*~%20%22%+/?&=#%FF \
        !'()*~%20\"%25+/?&=#\u{fffd} !'()*~%20\"%25+/?&=#\u{fffd} !='&!=(*) a=1\n\
        a%20b%2Fc%3F%26 a b/c /a%20b\naGVsbG8=YQhellonil\n\
        900150983cd24fb0d6963f7d28e17f72 162020\n3421780262 'it\\'s'\n\
        Sun, 09 Sep 2001 01:46:40 GMT; Sun, 09-Sep-01 01:46:40 GMT; 1000000000\n2b c d\n1910true\n";
    assert_eq!(said(script), expected);
}

#[test]
fn the_machine_is_all_of_luajit() {
    let script = r#"
        local ffi = require "ffi"
        ffi.cdef "int abs(int);"
        ngx.say(ffi.C.abs(-3), " ", require("bit").band(6, 3), " ", jit and "jit", " ", type(debug.traceback))
        ngx.say(require("table.nkeys")({ 1, a = 2 }), table.isarray({ 1, 2 }), table.isempty({}), #require("table.new")(1, 0))
        ngx.say(ngx.worker.pid() > 0, ngx.worker.id(), ngx.worker.exiting(), ngx.config.subsystem, ngx.config.ngx_lua_version)"#;
    assert_eq!(said(script), "3 2 jit function\n2truetrue0\ntrue0falsehttp10032\n");
}

/// OpenResty builds its LuaJIT like this, and libraries rely on it.
#[test]
fn the_machine_has_what_luajit_takes_from_lua_5_2() {
    let script = r#"
        local counted = setmetatable({}, { __len = function() return 7 end,
            __pairs = function() return function(_, last) if not last then return "only", 1 end end end })
        ngx.print(#counted)
        for name, value in pairs(counted) do ngx.print(" ", name, " ", value) end
        ngx.say(" ", table.pack(1, nil, 3).n, " ", table.unpack({ 4, 5 }), " ", ("x"):rep(3, "-"), " ", rawlen({ 1 }))
        ngx.say(type(coroutine.running()), " ", select(2, coroutine.running()), " ", unpack({ 6 }), " ", math.log(8, 2))"#;
    assert_eq!(said(script), "7 only 1 3 4 x-x-x 1\nthread false 6 3\n");
}

#[test]
fn libraries_name_types_of_nginx_and_find_that_their_functions_are_not_there() {
    let script = r#"
        local ffi = require "ffi"
        ffi.cdef [[ int ngx_http_lua_var_ffi_uri(ngx_http_request_t *r, ngx_str_t *uri); ]]
        local text = ffi.new("ngx_str_t[1]")
        text[0].data, text[0].len = "abcdef", 3
        ngx.say(ffi.string(text[0].data, text[0].len), " ", ffi.sizeof("ngx_http_lua_ffi_str_t"))
        ngx.say(pcall(function() return ffi.C.ngx_http_lua_var_ffi_uri end) == false)
        ngx.say(ffi.typeof("u_char") == ffi.typeof("unsigned char"))"#;
    assert_eq!(said(script), "abc 16\ntrue\ntrue\n");
}

/// As `resty.string`, `resty.random` and `resty.sha256` call them. A machine without OpenSSL is only asked for nginx's.
#[test]
fn libraries_find_functions_of_nginx_and_openssl_in_ffi() {
    let script = r#"
        local ffi = require "ffi"
        ffi.cdef [[
            unsigned char *ngx_hex_dump(unsigned char *dst, const unsigned char *src, size_t len);
            intptr_t ngx_atoi(const unsigned char *line, size_t n);
            unsigned char *SHA256(const unsigned char *d, size_t n, unsigned char *md);
            int RAND_bytes(unsigned char *buf, int num);
        ]]
        local function hex(s, n)
            local out = ffi.new("unsigned char[?]", 2 * n)
            local last = ffi.C.ngx_hex_dump(out, s, n)
            return ffi.string(out, last - out)
        end
        ngx.say(hex("\0az\255", 4), " ", hex("", 0))
        for _, text in ipairs { "0", "407", "", "-1", "4x", "9223372036854775807", "9223372036854775808" } do
            ngx.say(tostring(ffi.C.ngx_atoi(text, #text)))
        end
        if not pcall(ffi.load, "libcrypto.so.3") and not pcall(ffi.load, "crypto") then return ngx.say("none") end
        local out = ffi.new("unsigned char[?]", 32)
        ffi.C.SHA256("abc", 3, out)
        ngx.say(hex(out, 32):sub(1, 16), " ", ffi.C.RAND_bytes(out, 32))"#;
    let answer = said(script);
    let numbers = "0LL\n407LL\n-1LL\n-1LL\n-1LL\n9223372036854775807LL\n-1LL\n";
    let rest = answer.strip_prefix(&format!("00617aff \n{numbers}")).expect(&answer);
    assert!(matches!(rest, "ba7816bf8f01cfea 1\n" | "none\n"), "{answer}");
}

#[test]
fn dictionaries_are_shared_by_all_workers_and_outlive_a_reload() {
    let conf = r#"worker_processes 2;
        events {}
        http {
            lua_shared_dict d 1m;
            server {
                listen 127.0.0.1:%%PORT%%;
                location = /count { content_by_lua_block {
                    local sum = ngx.shared.d:incr("n", 1, 0)
                    ngx.shared.d:set("pid" .. ngx.worker.pid(), true)
                    ngx.say(sum, " ", #ngx.shared.d:get_keys())
                } }
                location = /api { content_by_lua_block {
                    local d = ngx.shared.d
                    d:flush_all()
                    ngx.say(d:set("a", "text", 0, 9), d:get("a"))
                    ngx.say(d:get("none"), " ", d:add("a", 1), " ", d:replace("b", 1))
                    ngx.say(d:set("a", nil), d:get("a"))
                    ngx.say(d:set("e", 1.5, 0.001), " ", d:incr("none", 1))
                    ngx.sleep(0.01)
                    ngx.say(d:get("e"), " ", (d:get_stale("e")))
                    ngx.say(d:lpush("l", "x"), d:rpush("l", 2), d:llen("l"), d:lpop("l"), d:rpop("l"), d:lpop("l"))
                    ngx.say(d:capacity(), d:free_space() > 0, " ", d:get())
                } }
            }
        }"#;
    let server = Server::start(WEIR, conf);
    for n in 1..=8 {
        assert!(server.get("/count").body().starts_with(&format!("{n} ")));
    }
    server.reload();
    assert!(server.get("/count").body().starts_with("9 "));
    let expected = "truetext9\nnil false falsenot foundfalse\ntruenil\ntrue nilnot found\n\
        nil 1.5\n122x2nil\n1048576true nilnil key\n";
    assert_eq!(server.get("/api").body(), expected);
}

#[test]
fn option_d_finds_the_longest_match_and_no_groups() {
    let script = r#"
        local m = ngx.re.match("a hello", "(he|hell)", "d")
        ngx.say(m[0], " ", tostring(m[1]), " ", ngx.re.match("a hello", "(he|hell)")[0])
        ngx.say(ngx.re.find("a hello", "HE|hell", "doi"))
        ngx.say(ngx.re.gsub("hello hell", "(?<n>he|hell)", "<$0$1>", "jd"))
        ngx.say(ngx.re.match("ä", ".", "du")[0], " ", tostring(ngx.re.match("x", "y", "d")))
        ngx.say(ngx.re.match("a", "(", "d") == nil, " ", select(2, ngx.re.match("aa", "(a)\\1", "d")))"#;
    let expected = "hell nil he\n36\n<hell>o <hell>2\nä nil\ntrue pcre_exec() failed: -42\n";
    assert_eq!(said(script), expected);
}

#[test]
fn option_a_leaves_verbs_at_the_start_and_a_comment_at_the_end_of_a_pattern() {
    let script = r#"
        for _, option in ipairs { "a", "aD", "ad", "D", "" } do
            ngx.say(ngx.re.find("ab", "(*UTF8)(*UCP)b|ab", option))
            ngx.say(ngx.re.find("ab", "b | ab # all", option .. "x"))
            ngx.say(ngx.re.find("ab", "b", option))
        end"#;
    let anchored = "12\n12\nnil\n".repeat(3);
    assert_eq!(said(script), anchored + &"12\n12\n22\n".repeat(2));
}

#[test]
fn patterns_match_and_replace() {
    let script = r#"
        local m = ngx.re.match("hello, 1234", "([a-z]+), (?<num>[0-9]+)(x)?", "jo")
        ngx.say(m[0], "|", m[1], "|", m.num, "|", m[3])
        ngx.say(ngx.re.match("abc", "x"), " ", (ngx.re.match("ABC", "b", "i"))[0])
        local ctx = { pos = 3 }
        ngx.say(ngx.re.match("a1b2", "\\d", "", ctx)[0], ctx.pos, ngx.re.match("a1b2", "^b", "a", { pos = 3 }) == nil)
        ngx.say(ngx.re.find("hello, 1234", "([0-9])([0-9]+)", "jo", nil, 2))
        local all = {}
        for found in ngx.re.gmatch("a=1, b=2", "(\\w)=(\\d)", "jo") do all[#all + 1] = found[1] .. found[2] end
        ngx.say(table.concat(all, ";"))
        ngx.say(ngx.re.sub("hello", "l(.)", "[$0|$1|${1}$$]"))
        ngx.say(ngx.re.gsub("a1b22", "[0-9]+", function(g) return "<" .. g[0] .. ">" end))
        ngx.say(ngx.re.gsub("abc", "", "-"))
        ngx.say(ngx.re.gsub("äö", ".", "x", "u"))
        ngx.say(ngx.re.gsub("hää", "", "-", "u"))
        ngx.say(ngx.re.match("章1\\", [[\u7AE0\d\\$]], "uJ")[0])
        ngx.say(ngx.re.match("ä", "\\w", "u"), " ", ngx.re.match("Ä", "ä", "iu")[0])
        ngx.say(ngx.re.match("a\255b", "b", "u"))
        ngx.say(ngx.re.find("ä", ".", "u", { pos = 2 }))
        local named = ngx.re.match("ab", "(?<n>a)(?<n>b)(?<none>c)?", "D")
        ngx.say(table.concat(named.n), " ", named.none, " ", ngx.re.match("", "(?<n>a)(?<n>b)", "J") == nil)
        ngx.say(ngx.re.match("a", "(", "jo"))
        ngx.say(ngx.re.sub("a", "a", "$x"))"#;
    let expected = "hello, 1234|hello|1234|false\nnil B\n25true\n911\na1;b2\nhe[ll|l|l$]o1\n\
        a<1>b<22>2\n-a-b-c-4\nxx2\n-h-ä-ä-4\n章1\\\nnil Ä\nnilpcre_exec() failed: -23\n\
        nilnilpcre_exec() failed: -36\nab nil true\n";
    let body = said(script);
    let rest = body.strip_prefix(expected).unwrap_or_else(|| panic!("{body}"));
    let mut lines = rest.lines();
    assert!(lines.next().is_some_and(|line| line.starts_with("nilpcre2_compile() failed: ")));
    assert!(lines.next().is_some_and(|line| line.starts_with("nilnil")), "{rest}");
}

#[test]
fn modules_in_c_find_lua_in_the_program() {
    let dir = weir_testkit::Dir::new();
    let source = dir.write(
        "answer.c",
        "typedef struct lua_State lua_State;
         void lua_pushnumber(lua_State *L, double n);
         void luaL_checkstack(lua_State *L, int n, const char *what);
         int luaopen_answer(lua_State *L) { luaL_checkstack(L, 1, \"\"); lua_pushnumber(L, 42); return 1; }",
    );
    let built = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(dir.file("answer.so"))
        .arg(source)
        .status();
    assert!(built.unwrap().success());
    let conf = "events {}
        http {
            lua_package_cpath '%%DIR%%/?.so';
            server {
                listen 127.0.0.1:%%PORT%%;
                location / { content_by_lua 'ngx.say(require \"answer\")'; }
            }
        }";
    let server = Server::start_in(dir, WEIR, conf);
    assert_eq!(server.get("/").body(), "42\n");
}

/// What functions return, by type. A caller may pass all values on, so one nil more is another call. The lists are those of
/// lua-nginx-module 0.10.23 with lua-resty-core 0.1.25.
#[test]
fn functions_return_as_many_values_as_openresty() {
    const RETURNED: &[(&str, &str)] = &[
        (r#"d:get("s")"#, "string"),
        (r#"d:get("f")"#, "string number"),
        (r#"d:get("none")"#, "nil"),
        (r#"d:get("")"#, "nil string"),
        (r#"d:get_stale("s")"#, "string nil boolean"),
        (r#"d:set("a", 1)"#, "boolean nil boolean"),
        (r#"d:set("", 1)"#, "nil string"),
        (r#"d:set("a", {})"#, "nil string"),
        (r#"d:add("s", 1)"#, "boolean string boolean"),
        (r#"d:replace("none", 1)"#, "boolean string boolean"),
        (r#"d:delete("s")"#, "boolean nil boolean"),
        (r#"d:delete(nil)"#, "nil string"),
        (r#"d:incr("n", 1)"#, "number"),
        (r#"d:incr("n", 1, 0)"#, "number nil boolean"),
        (r#"d:incr("none", 1)"#, "nil string"),
        (r#"d:lpush("l", 1)"#, "number"),
        (r#"d:rpush("l", 1)"#, "number"),
        (r#"d:lpush("s", 1)"#, "nil string"),
        (r#"d:lpop("l")"#, "number"),
        (r#"d:llen("l")"#, "number"),
        (r#"d:ttl("s")"#, "number"),
        (r#"d:ttl("none")"#, "nil string"),
        (r#"d:expire("s", 9)"#, "boolean"),
        (r#"d:expire("none", 9)"#, "nil string"),
        ("ngx.req.get_headers()", "table"),
        ("ngx.req.get_headers(1)", "table string"),
        ("ngx.resp.get_headers()", "table"),
        (r#"ngx.re.find("abc", "b")"#, "number number"),
        (r#"ngx.re.find("abc", "x")"#, "nil"),
        (r#"ngx.re.find("abc", "(")"#, "nil nil string"),
        (r#"ngx.re.match("abc", "x")"#, "nil"),
        (r#"ngx.re.sub("abc", "b", "x")"#, "string number"),
        ("coroutine.resume(coroutine.create(function() end))", "boolean"),
        ("coroutine.resume(coroutine.create(function() return nil, 1 end))", "boolean nil number"),
        ("coroutine.wrap(function() end)()", ""),
        ("ngx.socket.tcp():settimeout({})", ""),
    ];
    let mut script = String::from(
        "local function types(...)
             local all = {}
             for i = 1, select('#', ...) do all[i] = type((select(i, ...))) end
             return table.concat(all, ' ')
         end
         local d = ngx.shared.d\n",
    );
    for (call, _) in RETURNED {
        script.push_str(
            "d:flush_all() d:set('s', 'v') d:set('f', 'v', 0, 5) d:set('n', 1) d:lpush('l', 1)\n",
        );
        script.push_str(&format!("ngx.say(types({call}))\n"));
    }
    // A lexer's context needs no position to begin with.
    script.push_str("local ctx = {} ngx.re.match('ab', 'a', 'jo', ctx) ngx.say(ctx.pos)\n");
    let conf = format!(
        "events {{}} http {{ lua_shared_dict d 1m; server {{ listen 127.0.0.1:%%PORT%%;
             location / {{ content_by_lua_block {{ {script} }} }} }} }}"
    );
    let answer = Server::start(WEIR, &conf).get("/").body();
    let returned: Vec<&str> = answer.lines().collect();
    for ((call, expected), returned) in RETURNED.iter().zip(&returned) {
        assert_eq!(returned, expected, "{call}");
    }
    assert_eq!(returned.last(), Some(&"2"), "{answer}");
}

#[test]
fn searches_go_on_where_a_context_says() {
    let script = r#"
        local function all(search, subject, pattern, options)
            local ctx, found = { pos = 1 }, {}
            while #found < 9 do
                local one = search(subject, pattern, options, ctx)
                if not one then break end
                table.insert(found, (type(one) == "table" and one[0] or one) .. ":" .. ctx.pos)
            end
            ngx.say(table.concat(found, " "))
        end
        all(ngx.re.match, "12 + 34", [[\s*(\d+|\+)]], "ajo")
        all(ngx.re.find, "12 + 34", [[\s*(\d+|\+)]], "ajo")
        all(ngx.re.match, "abcabc", "b", "")
        all(ngx.re.find, "abcabc", "b", "jo")
        all(ngx.re.match, "abab", "a", "a")
        all(ngx.re.find, "abab", "a", "a")
        local ctx = {} ngx.re.find("abc", "b", "", ctx) ngx.say(ctx.pos)
        ctx = { pos = 2 } ngx.say(ngx.re.match("abc", "z", "", ctx), ngx.re.find("abc", "z", "", ctx), ctx.pos)
        ctx = { pos = -1 } ngx.say(ngx.re.match("abc", "a", "", ctx)[0], ctx.pos)
        ctx = { pos = 9 } ngx.say(ngx.re.match("abc", "", "", ctx), ctx.pos)
        ngx.say(select(2, ngx.re.match("abc", "", "", ctx)), " ", select(3, ngx.re.find("abc", "", "a", ctx)))
        local found = {}
        for m in ngx.re.gmatch("aabaa", "a", "a") do table.insert(found, m[0]) end
        ngx.say(table.concat(found), " ", (ngx.re.gsub("aabaa", "a", "x", "a")), " ", (ngx.re.sub("baa", "a", "x", "a")))
        local _, _, err = ngx.re.find("abc", "(a)", "", nil, 5) ngx.say(err)"#;
    let expected = "12:3  +:5  34:8\n1:3 3:5 5:8\nb:3 b:6\n2:3 5:6\na:2\n1:2\n3\nnilnil2\na2\nnil9\n\
        pcre_exec() failed: -33 pcre_exec() failed: -33\naa xxbaa baa\nnth out of bound\n";
    assert_eq!(said(script), expected);
}

#[test]
fn base64_of_mails_is_read_past_other_characters() {
    let script = r#"
        for _, text in ipairs { "aGVs\r\n bG8=", "aGVsbG8", "-a-G-V-s-b-G-8-=zzz", "a\0G?=", "====", "", "a", "aGVsb" } do
            ngx.print(tostring(ngx.decode_base64mime(text)), ",")
        end
        ngx.print((select(2, pcall(ngx.decode_base64mime, 1)):gsub("^.*: ", "")))"#;
    assert_eq!(said(script), "hello,hello,hello,h,,,nil,nil,string argument only");
}

#[test]
fn texts_are_changed_by_ndk_set_var() {
    let script = r#"
        local change = require("ndk").set_var
        ngx.say(change.set_escape_uri(" a&b"), " ", change.set_unescape_uri("a%20b"))
        ngx.say(change.set_encode_base64("ab"), " ", change.set_decode_base64("YWI="), " ", change.set_encode_base32("2011."))
        ngx.say(change.set_encode_base32("a"), " ", change.set_encode_hex("a\0"), " ", change.set_decode_hex("6162"))
        ngx.say(change.set_md5("a"), " ", change.set_sha1("a"), " ", change.set_quote_sql_str("it's"))
        ngx.say(pcall(function() return change.set_nothing end))
        ngx.say(change.set_md5(5) == ngx.md5("5"), " ", change.set_encode_hex(true))"#;
    let said = "%20a%26b a b\nYWI= ab 68o32c9e\nc4====== 6100 ab\n\
        0cc175b9c0f1b6a831c399e269772661 86f7e437faa5a7fce15d1ddcb9eaeaea377667b8 'it\\'s'\n\
        falsecontent_by_lua(nginx.conf:5):7: ndk.set_var: directive \"set_nothing\" not found or does not use \
        ndk_set_var_value\ntrue 74727565\n";
    assert_eq!(super::said(script), said);
}

#[test]
fn patterns_have_the_stack_that_a_script_asks_for() {
    let location = r#"location /t { content_by_lua_block {
        local found, why = ngx.re.match(("ab"):rep(20000), "^(?:(a)|(b))*$", "jo")
        ngx.say(found and #found[0] or why)
        ngx.say((select(2, pcall(require("ngx.re").opt, "jit_stack_size", 2 ^ 17)):gsub("^.*: ", "")))
        ngx.say((select(2, pcall(function() ngx.ctx = nil end)):gsub("^.*: ", "")))
    } }"#;
    let late = "changing jit stack size is not allowed when some regexs have already been compiled and cached\n\
        ctx should be a table while getting a nil\n";
    let small = super::server_with("", location).get("/t").body();
    assert_eq!(small, format!("pcre_exec() failed: -46\n{late}"));
    let more = "init_by_lua_block { require('ngx.re').opt('jit_stack_size', 8 * 1024 * 1024) }";
    let large = super::server_with(more, location).get("/t").body();
    assert_eq!(large, format!("40000\n{late}"));
}

#[test]
fn a_dictionary_is_what_its_zone_has_made_and_keeps_long_times() {
    let server = server_with(
        "lua_shared_dict d 100k;",
        r#"location / { content_by_lua_block {
               local d = ngx.shared.d
               for _, other in ipairs { "k", { 0 }, { 1 }, { ngx.null } } do
                   ngx.say(select(2, pcall(d.set, other, "k", 1)))
               end
               for _, ttl in ipairs { 2 ^ 31, 1e10 } do
                   d:set("k", 1, ttl)
                   ngx.say(d:ttl("k") == ttl)
               end
               d:set("k", 1, 2 ^ 60)
               ngx.say(d:ttl("k"))
               ngx.say(d:incr("k", "2"), " ", select(2, pcall(d.incr, d, "k", "two")))
           } }"#,
    );
    let zone = "bad \"zone\" argument\n".repeat(4);
    let said = server.get("/").body();
    assert!(said.starts_with(&format!("{zone}true\ntrue\n0\n3 ")), "{said}");
    assert!(said.ends_with(" cannot convert 'nil' to 'double'\n"), "{said}");
}

#[test]
fn libraries_find_what_modules_of_lua_resty_core_offer_them() {
    let script = r#"
        local base, time, errlog = require "resty.core.base", require "resty.core.time", require "ngx.errlog"
        local ffi = require "ffi"
        local size, buffer = base.get_size_ptr(), base.get_string_buf(3)
        size[0] = 3
        ffi.copy(buffer, "abc", 3)
        ngx.say(ffi.string(buffer, size[0]), " ", base.get_string_buf(5) == buffer, " ", base.get_string_buf(5, true) == buffer,
            " ", base.get_string_buf_size(), " ", ffi.sizeof(base.get_string_buf(5000)))
        base.set_string_buf_size(8192)
        ngx.say(base.get_string_buf_size(), " ", base.get_errmsg_ptr() == base.get_errmsg_ptr())
        local places = {}
        ngx.say(base.ref_in_table(places, "a"), base.ref_in_table(places, "b"), base.ref_in_table(places))
        places[2], places[0] = 0, 2
        ngx.say(base.ref_in_table(places, "c"), base.ref_in_table(places, "d"), places[2], places[3])
        local first = time.monotonic_msec()
        ngx.say(first > 0, " ", time.monotonic_time() * 1000 > first - 1)
        ngx.say(errlog.get_logs(10))
        ngx.say(errlog.set_filter_level())"#;
    let expected = "abc true false 4096 5000\n8192 true\n12-1\n23cd\ntrue true\n\
        nildirective \"lua_capture_error_log\" is not set\nnilmissing \"level\" argument\n";
    assert_eq!(said(script), expected);
}

#[test]
fn a_script_sees_all_workers_and_the_methods_of_its_objects() {
    let conf = "worker_processes 2; events {}
        http { lua_shared_dict all 64k; server {
            listen 127.0.0.1:%%PORT%%;
            location = /pids { content_by_lua_block {
                local pids = ngx.worker.pids()
                ngx.say(#pids, ' ', pids[ngx.worker.id() + 1] == ngx.worker.pid())
            } }
            location = /methods { content_by_lua_block {
                local tcp, udp, all = ngx.socket.tcp(), ngx.socket.udp(), ngx.shared.all
                ngx.say(getmetatable(tcp).send == tcp.send, getmetatable(udp).send == udp.send, all.__index.get == all.get)
            } }
        } }";
    let server = Server::start(WEIR, conf);
    // Each worker is counted from its start on.
    let all = |_| server.get("/pids").body() == "2 true\n";
    assert!((0..10_000).any(all));
    assert_eq!(server.get("/methods").body(), "truetruetrue\n");
}

#[test]
fn a_request_without_a_version_has_no_headers() {
    let server = server(
        "location = /t { content_by_lua_block {
            ngx.req.set_header('X', 'x')
            ngx.say(ngx.status, ' ', ngx.req.get_headers().x)
        } }",
    );
    assert_eq!(server.connect().send("GET /t\r\n").rest(), "9 nil\n");
}

#[test]
fn patterns_take_no_more_steps_than_is_said() {
    let lines = r#"location / { content_by_lua_block {
        local _, _, why = ngx.re.find(("a"):rep(25), "(a|a)*[xy]", ngx.var.arg_o)
        ngx.print(why or "no match", " ", ngx.re.match("ab", "b")[0])
    } }"#;
    let limited = server_with("lua_regex_match_limit 100;", lines);
    let free = server_with("lua_regex_match_limit 0;", &lines.replace("rep(25)", "rep(12)"));
    for options in ["", "jo", "u"] {
        let path = format!("/?o={options}");
        assert_eq!(limited.get(&path).body(), "pcre_exec() failed: -47 b", "{options}");
        assert_eq!(free.get(&path).body(), "no match b", "{options}");
    }
}

#[test]
fn a_pattern_may_have_bytes_that_are_no_text() {
    let server = server(
        r#"location / { content_by_lua_block {
            ngx.say(ngx.re.find("a\233b", "[\224-\239]b"), " ", ngx.re.find("\255", "\255", "jo"))
            ngx.say(ngx.re.gsub("x\0\200y", "\200", "-"))
            ngx.say(select(2, ngx.re.match("a", "\255", "u")))
        } }"#,
    );
    let said = server.get("/").body();
    assert!(said.starts_with("2 11\nx\0-y1\npattern "), "{said:?}");
}
