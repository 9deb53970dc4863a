// A client of quic-go for tests/interop/run: see there for what each case asks.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

var (
	testCase = flag.String("case", "transfer", "what to do")
	out      = flag.String("out", ".", "where files go")
)

func main() {
	flag.Parse()
	if err := run(flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "failed:", err)
		os.Exit(1)
	}
}

func run(urls []string) error {
	conf := &tls.Config{InsecureSkipVerify: true, ServerName: "localhost", ClientSessionCache: tls.NewLRUClientSessionCache(10)}
	quicConf := &quic.Config{HandshakeIdleTimeout: 60 * time.Second, MaxIdleTimeout: 60 * time.Second}
	switch *testCase {
	case "multiconnect":
		for _, u := range urls {
			if _, err := connect(conf, quicConf, []string{u}, http.MethodGet, nil); err != nil {
				return err
			}
		}
		return nil
	case "resumption", "zerortt":
		if _, err := connect(conf, quicConf, urls[:1], http.MethodGet, nil); err != nil {
			return err
		}
		method := http.MethodGet
		if *testCase == "zerortt" {
			method = http3.MethodGet0RTT
		}
		state, err := connect(conf, quicConf, urls[1:], method, nil)
		if err == nil && !state.TLS.DidResume {
			err = errors.New("the second connection was not resumed")
		}
		if err == nil && *testCase == "zerortt" && !state.Used0RTT {
			err = errors.New("the server took no early data")
		}
		return err
	case "v2":
		quicConf.Versions = []quic.Version{quic.Version2}
		_, err := connect(conf, quicConf, urls, http.MethodGet, nil)
		return err
	case "connectionmigration":
		_, err := connect(conf, quicConf, urls, http.MethodGet, migrate)
		return err
	}
	_, err := connect(conf, quicConf, urls, http.MethodGet, nil)
	return err
}

// Moves a connection to a socket of another port.
func migrate(conn *quic.Conn) error {
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4zero})
	if err != nil {
		return err
	}
	path, err := conn.AddPath(&quic.Transport{Conn: socket})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := path.Probe(ctx); err != nil {
		return err
	}
	return path.Switch()
}

// Gets all files over one connection.
func connect(conf *tls.Config, quicConf *quic.Config, urls []string, method string, during func(*quic.Conn) error) (*quic.ConnectionState, error) {
	var conn *quic.Conn
	begun := make(chan struct{}, 1)
	transport := &http3.Transport{TLSClientConfig: conf, QUICConfig: quicConf}
	transport.Dial = func(ctx context.Context, addr string, conf *tls.Config, quicConf *quic.Config) (*quic.Conn, error) {
		server, err := net.ResolveUDPAddr("udp", addr)
		if err != nil {
			return nil, err
		}
		socket, err := net.ListenUDP("udp", nil)
		if err != nil {
			return nil, err
		}
		// Its ids have a length, as those of the transport that a connection moves to.
		conn, err = (&quic.Transport{Conn: socket}).DialEarly(ctx, server, conf, quicConf)
		select {
		case begun <- struct{}{}:
		default:
		}
		return conn, err
	}
	defer transport.Close()
	var wait sync.WaitGroup
	errs := make(chan error, len(urls)+1)
	get := func(u string) {
		defer wait.Done()
		errs <- fetch(transport, method, u)
	}
	first := urls
	if method == http.MethodGet && during == nil {
		// Before the rest, so that there is one connection for all.
		wait.Add(1)
		get(urls[0])
		first = urls[1:]
	}
	// As many as the server permits wait for a stream by themselves; this bounds goroutines.
	slots := make(chan struct{}, 200)
	for _, u := range first {
		wait.Add(1)
		slots <- struct{}{}
		go func() { get(u); <-slots }()
	}
	if during != nil {
		<-begun
		<-conn.HandshakeComplete()
		if err := during(conn); err != nil {
			return nil, err
		}
	}
	wait.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return nil, err
		}
	}
	if conn == nil {
		return nil, errors.New("no connection")
	}
	select {
	case <-conn.HandshakeComplete():
	case <-time.After(10 * time.Second):
		return nil, errors.New("the handshake does not end")
	}
	// Tickets come with or behind the handshake.
	time.Sleep(200 * time.Millisecond)
	state := conn.ConnectionState()
	return &state, conn.CloseWithError(0x100, "")
}

func fetch(transport *http3.Transport, method, u string) error {
	request, err := http.NewRequest(method, u, nil)
	if err != nil {
		return err
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != 200 {
		return fmt.Errorf("%s for %s", answer.Status, u)
	}
	parsed, err := url.Parse(u)
	if err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(*out, filepath.Base(parsed.Path)))
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(file, answer.Body)
	return err
}
