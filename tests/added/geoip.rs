//! geoip and geoip2.

use weir_testkit::{Dir, Server};

use crate::mmdb::{self, Value};
use crate::{refused, server_in};

fn names(name: &'static str) -> Value {
    Value::Map(vec![("en", Value::Text(name)), ("de", Value::Text("auf Deutsch"))])
}

fn with_databases() -> Dir {
    let dir = Dir::new();
    let place = Value::Map(vec![
        ("country", Value::Map(vec![("iso_code", Value::Text("IS")), ("names", names("Iceland"))])),
        ("city", Value::Map(vec![("names", names("A city whose name is longer than 28"))])),
        (
            "subdivisions",
            Value::List(vec![Value::Map(vec![
                ("iso_code", Value::Text("1")),
                ("names", names("R")),
            ])]),
        ),
        (
            "location",
            Value::Map(vec![
                ("latitude", Value::Double(64.15)),
                ("longitude", Value::Double(-21.95)),
                ("metro_code", Value::U16(7)),
            ]),
        ),
    ]);
    // One address of IPv4, and a network of IPv6.
    let abroad =
        Value::Map(vec![("registered_country", Value::Map(vec![("iso_code", Value::Text("NO"))]))]);
    let networks = vec![("10.1.0.0", 96 + 16, place), ("2001:db8::", 32, abroad)];
    dir.write("city.mmdb", mmdb::write(networks));
    let owner = Value::Map(vec![
        ("autonomous_system_number", Value::U32(64_512)),
        ("autonomous_system_organization", Value::Text("Somebody")),
    ]);
    dir.write("org.mmdb", mmdb::write(vec![("10.0.0.0", 96 + 8, owner)]));
    dir
}

fn from(server: &Server, path: &str, address: &str) -> String {
    server.ask(&format!("GET {path}"), &format!("X-Forwarded-For: {address}\r\n"), "").body()
}

#[test]
fn an_address_has_a_country_a_city_and_an_owner() {
    let s = server_in(
        with_databases(),
        "geoip_country city.mmdb; geoip_city city.mmdb utf8; geoip_org org.mmdb; geoip_proxy 127.0.0.0/8;",
        "location /a { return 200 \"$geoip_country_code,$geoip_country_name,$geoip_org\"; }
         location /b { return 200 \"$geoip_city|$geoip_region|$geoip_region_name|$geoip_latitude|$geoip_longitude|$geoip_dma_code\"; }
         location /c { return 200 \"[$geoip_country_code3$geoip_postal_code]\"; }",
    );
    assert_eq!(from(&s, "/a", "10.1.2.3"), "IS,Iceland,Somebody");
    assert_eq!(from(&s, "/a", "10.2.2.3"), ",,Somebody");
    assert_eq!(from(&s, "/a", "2001:db8::1"), "NO,,");
    assert_eq!(s.get("/a").body(), ",,");
    let city = "A city whose name is longer than 28|1|R|64.1500|-21.9500|7";
    assert_eq!(from(&s, "/b", "10.1.2.3"), city);
    assert_eq!(from(&s, "/c", "10.1.2.3"), "[]");
    // Behind a second proxy: its address, or the one before it.
    for (recursive, expected) in [("off", ",Somebody"), ("on", "IS,Somebody")] {
        let s = server_in(
            with_databases(),
            &format!(
                "geoip_country city.mmdb; geoip_org org.mmdb; geoip_proxy 127.0.0.0/8;
                 geoip_proxy 10.2.0.0/16; geoip_proxy_recursive {recursive};"
            ),
            "location / { return 200 \"$geoip_country_code,$geoip_org\"; }",
        );
        assert_eq!(from(&s, "/", "10.1.2.3, 10.2.9.9"), expected, "{recursive}");
    }
}

/// As with nginx's module. A configuration may also give such a name a meaning of its own.
#[test]
fn variables_without_a_database_have_no_value() {
    let names = "$geoip_country_code|$geoip_city|$geoip_latitude|$geoip_org";
    let port = weir_testkit::free_port();
    let s = Server::start_in(
        with_databases(),
        crate::WEIR,
        &format!(
            "events {{ }} http {{ map $uri $geoip_region {{ default own; }}
                 server {{ listen 127.0.0.1:%%PORT%%; return 200 '{names}|$geoip_region'; }} }}
             stream {{ server {{ listen 127.0.0.1:{port}; return '{names}'; }} }}"
        ),
    );
    assert_eq!(s.get("/").body(), "||||own");
    let mut text = String::new();
    let mut client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    std::io::Read::read_to_string(&mut client, &mut text).unwrap();
    assert_eq!(text, "|||");
}

#[test]
fn each_variable_has_its_place() {
    let s = server_in(
        with_databases(),
        "geoip2 city.mmdb {
             $code default=XX country iso_code;
             $german country names de;
             $region subdivisions 0 iso_code;
             $latitude location latitude;
             $asked default=none source=$arg_ip country iso_code;
             $all country;
             $built metadata build_epoch;
         }
         geoip2 org.mmdb { $as autonomous_system_number; }
         geoip2_proxy 127.0.0.0/8; geoip2_proxy 10.0.0.0/8; geoip2_proxy_recursive on;",
        "location / { return 200 \"$code|$german|$region|$latitude|$asked|$all|$built|$as\"; }",
    );
    let found = "IS|auf Deutsch|1|64.15000|none||1700000000|64512";
    // The first that is no proxy, or the outermost one.
    assert_eq!(from(&s, "/", "10.1.2.3, 10.9.9.9"), found);
    assert_eq!(from(&s, "/", "192.0.2.1, 10.1.2.3"), "XX||||none||1700000000|");
    assert_eq!(from(&s, "/?ip=10.1.0.0", "192.0.2.1"), "XX||||IS||1700000000|");
    assert_eq!(from(&s, "/?ip=none", "192.0.2.1"), "XX||||none||1700000000|");
}

#[test]
fn sessions_of_stream_have_their_places_too() {
    let port = weir_testkit::free_port();
    let s = Server::start_in(
        with_databases(),
        crate::WEIR,
        &format!(
            "events {{ }} http {{ server {{ listen 127.0.0.1:%%PORT%%; }} }}
             stream {{ set_real_ip_from 127.0.0.1; geo $given {{ default 10.1.2.3; }}
                geoip2 city.mmdb {{ $code default=XX country iso_code; $asked source=$given country names de; }}
                server {{ listen 127.0.0.1:{port}; return \"$code|$asked\"; }}
                server {{ listen 127.0.0.2:{port} proxy_protocol; return $code; }} }}"
        ),
    );
    let said = |address: &str, sent: &[u8]| {
        use std::io::{Read, Write};
        let mut client = std::net::TcpStream::connect((address, port)).unwrap();
        client.write_all(sent).unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        text
    };
    assert_eq!(said("127.0.0.1", b""), "XX|auf Deutsch");
    assert_eq!(said("127.0.0.2", b"PROXY TCP4 10.1.0.1 10.0.0.1 1 2\r\n"), "IS");
    drop(s);
}

#[test]
fn what_is_no_database_is_refused() {
    assert!(
        refused("geoip2 none.mmdb { $a b; }")
            .contains("none.mmdb\" (2: No such file or directory)")
    );
    let old = refused("geoip_country /dev/null/GeoIP.dat;");
    assert!(old.contains("not the older .dat"), "{old}");
    let dir = with_databases();
    dir.write("bad.mmdb", "no database at all");
    let file = |name: &str| dir.path().join(name).display().to_string();
    let bad = refused(&format!("geoip2 {} {{ $a b; }}", file("bad.mmdb")));
    assert!(bad.contains("cannot read database"), "{bad}");
    let good = file("city.mmdb");
    for (line, why) in [
        ("a b;", "invalid variable name \"a\""),
        ("$a;", "invalid number of arguments"),
        ("$a source=x b;", "invalid source \"source=x\""),
        ("$a metadata none;", "invalid metadata field"),
        ("$uri b;", "the duplicate \"uri\" variable"),
    ] {
        let said = refused(&format!("geoip2 {good} {{ {line} }}"));
        assert!(said.contains(why), "{line}: {said}");
    }
}
