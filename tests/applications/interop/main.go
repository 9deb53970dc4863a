// gRPC's interoperability suite: "serve ADDRESS" runs its server, "call ADDRESS [tls]" its cases against an address.
package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
)

func main() {
	if os.Args[1] == "serve" {
		listener, err := net.Listen("tcp", os.Args[2])
		if err != nil {
			panic(err)
		}
		server := grpc.NewServer()
		testgrpc.RegisterTestServiceServer(server, interop.NewTestServer())
		panic(server.Serve(listener))
	}
	speaks := insecure.NewCredentials()
	if len(os.Args) > 3 {
		speaks = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})
	}
	conn, err := grpc.NewClient(os.Args[2], grpc.WithTransportCredentials(speaks))
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	calls := []struct {
		name string
		call func(context.Context, testgrpc.TestServiceClient, ...grpc.CallOption)
	}{
		{"empty_unary", interop.DoEmptyUnaryCall},
		{"large_unary", interop.DoLargeUnaryCall},
		{"client_streaming", interop.DoClientStreaming},
		{"server_streaming", interop.DoServerStreaming},
		{"ping_pong", interop.DoPingPong},
		{"empty_stream", interop.DoEmptyStream},
		{"timeout_on_sleeping_server", interop.DoTimeoutOnSleepingServer},
		{"cancel_after_begin", interop.DoCancelAfterBegin},
		{"cancel_after_first_response", interop.DoCancelAfterFirstResponse},
		{"status_code_and_message", interop.DoStatusCodeAndMessage},
		{"special_status_message", interop.DoSpecialStatusMessage},
		{"custom_metadata", interop.DoCustomMetadata},
	}
	client := testgrpc.NewTestServiceClient(conn)
	for _, each := range calls {
		fmt.Println(each.name)
		each.call(context.Background(), client)
	}
	fmt.Println("unimplemented_method")
	interop.DoUnimplementedMethod(context.Background(), conn)
	fmt.Println("unimplemented_service")
	interop.DoUnimplementedService(context.Background(), testgrpc.NewUnimplementedServiceClient(conn))
	fmt.Println("done")
}
