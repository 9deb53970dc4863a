// Gateway API's own conformance suite, as its module has it. ./run starts this with the flags of the suite.
package gateway

import (
	"testing"

	"sigs.k8s.io/gateway-api/conformance"
)

func TestConformance(t *testing.T) {
	conformance.RunConformance(t)
}
