// Package check renders the Kubernetes files beside it and decodes them strictly into the types of the Kubernetes API.
// It is a module of its own, so that those types are no dependency of sandbus.
package check

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	yamlstream "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// The agent-sandbox controller's own types, as its API reference (v1alpha1 of extensions.agents.x-k8s.io) has them, as
// far as the template uses them.
type sandboxTemplate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		PodTemplate struct {
			Metadata struct {
				Labels, Annotations map[string]string
			} `json:"metadata"`
			Spec corev1.PodSpec `json:"spec"`
		} `json:"podTemplate"`
	} `json:"spec"`
}

type sandboxWarmPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Replicas    int32                 `json:"replicas"`
		TemplateRef struct{ Name string } `json:"sandboxTemplateRef"`
	} `json:"spec"`
}

// kinds makes an empty object for each kind that the files may have.
var kinds = map[string]func() any{
	"v1/Namespace":                                        func() any { return &corev1.Namespace{} },
	"apps/v1/Deployment":                                  func() any { return &appsv1.Deployment{} },
	"policy/v1/PodDisruptionBudget":                       func() any { return &policyv1.PodDisruptionBudget{} },
	"networking.k8s.io/v1/NetworkPolicy":                  func() any { return &networkingv1.NetworkPolicy{} },
	"extensions.agents.x-k8s.io/v1alpha1/SandboxTemplate": func() any { return &sandboxTemplate{} },
	"extensions.agents.x-k8s.io/v1alpha1/SandboxWarmPool": func() any { return &sandboxWarmPool{} },
}

// decode decodes a stream of documents; a field that a type does not have is an error.
func decode(stream []byte) ([]any, error) {
	var objects []any
	docs := yamlstream.NewYAMLReader(bufio.NewReader(bytes.NewReader(stream)))
	for {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		var head metav1.TypeMeta
		if err := yaml.Unmarshal(doc, &head); err != nil {
			return nil, err
		}
		fresh, ok := kinds[head.APIVersion+"/"+head.Kind]
		if !ok {
			return nil, fmt.Errorf("kind %s/%s is not known here", head.APIVersion, head.Kind)
		}
		o := fresh()
		if err := yaml.UnmarshalStrict(doc, o); err != nil {
			return nil, fmt.Errorf("%s: %w", head.Kind, err)
		}
		objects = append(objects, o)
	}
}

func render(t *testing.T, dir string) []byte {
	t.Helper()
	m, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	require.NoError(t, err)
	out, err := m.AsYaml()
	require.NoError(t, err)
	return out
}

// checkPod holds the rules for every pod of ours.
func checkPod(t *testing.T, name string, meta map[string]string, p corev1.PodSpec) {
	t.Helper()
	require.NotEmpty(t, meta, name)
	require.NotNil(t, p.AutomountServiceAccountToken, name)
	require.False(t, *p.AutomountServiceAccountToken, "%s: a service account's token is mounted", name)
	require.False(t, p.HostNetwork || p.HostPID || p.HostIPC, "%s: shares the host's namespaces", name)
	require.NotNil(t, p.SecurityContext, name)
	require.True(t, *p.SecurityContext.RunAsNonRoot, "%s: may run as root", name)
	require.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, p.SecurityContext.SeccompProfile.Type, name)
	volumes := map[string]bool{}
	for _, v := range p.Volumes {
		require.Nil(t, v.HostPath, "%s: mounts the host", name)
		volumes[v.Name] = true
	}
	used := map[string]bool{}
	for _, c := range slices.Concat(p.InitContainers, p.Containers) {
		require.NotNil(t, c.SecurityContext, "%s/%s", name, c.Name)
		require.False(t, *c.SecurityContext.AllowPrivilegeEscalation, "%s/%s", name, c.Name)
		require.True(t, *c.SecurityContext.ReadOnlyRootFilesystem, "%s/%s", name, c.Name)
		require.Equal(t, []corev1.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop, "%s/%s", name, c.Name)
		require.Empty(t, c.SecurityContext.Capabilities.Add, "%s/%s", name, c.Name)
		for _, m := range c.VolumeMounts {
			require.True(t, volumes[m.Name], "%s/%s mounts %s, which is no volume", name, c.Name, m.Name)
			used[m.Name] = true
		}
	}
	require.Len(t, used, len(volumes), "%s: a volume is not used", name)
	for _, c := range p.Containers { // what can make credentials is not where commands run
		for _, m := range c.VolumeMounts {
			require.NotEqual(t, "minter", m.Name, "%s/%s", name, c.Name)
		}
	}
}

func TestOverlays(t *testing.T) {
	overlays, err := filepath.Glob("../overlays/*")
	require.NoError(t, err)
	require.NotEmpty(t, overlays)
	for _, dir := range append(overlays, "../base") {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			objects, err := decode(render(t, dir))
			require.NoError(t, err)
			pods := map[string]labels.Set{}
			var selectors []*metav1.LabelSelector
			for _, o := range objects {
				switch o := o.(type) {
				case *appsv1.Deployment:
					tpl := o.Spec.Template
					checkPod(t, o.Name, tpl.Labels, tpl.Spec)
					for _, c := range slices.Concat(tpl.Spec.InitContainers, tpl.Spec.Containers) {
						require.NotEmpty(t, c.Resources.Limits.Memory().String(), "%s/%s", o.Name, c.Name)
						require.False(t, c.Resources.Limits.Memory().IsZero(), "%s/%s has no memory limit", o.Name, c.Name)
					}
					sel, err := metav1.LabelSelectorAsSelector(o.Spec.Selector)
					require.NoError(t, err)
					require.True(t, sel.Matches(labels.Set(tpl.Labels)), "%s selects other pods than its own", o.Name)
					pods[o.Name] = tpl.Labels
				case *policyv1.PodDisruptionBudget:
					selectors = append(selectors, o.Spec.Selector)
				case *networkingv1.NetworkPolicy:
					require.NotEmpty(t, o.Spec.PolicyTypes, o.Name)
				}
			}
			require.Len(t, pods, 2)
			require.Len(t, selectors, 2)
			for _, s := range selectors {
				sel, err := metav1.LabelSelectorAsSelector(s)
				require.NoError(t, err)
				hit := 0
				for _, l := range pods {
					if sel.Matches(l) {
						hit++
					}
				}
				require.Equal(t, 1, hit, "a disruption budget fits %d deployments", hit)
			}
		})
	}
}

func TestAgentSandbox(t *testing.T) {
	b, err := os.ReadFile("../agent-sandbox/sandbox-template.yaml")
	require.NoError(t, err)
	objects, err := decode(b)
	require.NoError(t, err)
	require.Len(t, objects, 2)
	tpl := objects[0].(*sandboxTemplate)
	checkPod(t, tpl.Name, tpl.Spec.PodTemplate.Metadata.Labels, tpl.Spec.PodTemplate.Spec)
	require.Equal(t, tpl.Name, objects[1].(*sandboxWarmPool).Spec.TemplateRef.Name)
}

// TestValues reads what can be read of the chart's values without the chart: that it is YAML whose keys do not repeat.
func TestValues(t *testing.T) {
	files, err := filepath.Glob("../hub/*.yaml")
	require.NoError(t, err)
	require.Len(t, files, 3)
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		var v map[string]any
		require.NoError(t, yaml.UnmarshalStrict(b, &v), f)
		require.NotEmpty(t, v, f)
	}
}

// TestDecodeIsStrict shows that the check can fail.
func TestDecodeIsStrict(t *testing.T) {
	good := string(render(t, "../base"))
	for name, bad := range map[string]string{
		"a misspelt field": strings.Replace(good, "automountServiceAccountToken", "automountServiceAccountTokens", 1),
		"a wrong type":     strings.Replace(good, "replicas: 3", "replicas: three", 1),
		"an unknown kind":  strings.Replace(good, "kind: Deployment", "kind: Deploiment", 1),
	} {
		require.NotEqual(t, good, bad, name)
		_, err := decode([]byte(bad))
		require.Error(t, err, name)
	}
}
