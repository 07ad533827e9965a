package record

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sampleOf has operations of one kind that took 1 to n ms, and failures of another.
func sampleOf(t *testing.T, n, failed int) Sample {
	t.Helper()
	a, b := NewRecorder(), NewRecorder()
	for i := range n {
		rec := a
		if i%2 == 0 {
			rec = b // as if of two processes
		}
		rec.OK("read", time.Duration(i+1)*time.Millisecond)
	}
	b.Failed("write", "busy", failed)
	x, err := a.Outcomes()
	require.NoError(t, err)
	y, err := b.Outcomes()
	require.NoError(t, err)
	l, err := Merge(x, y)
	require.NoError(t, err)
	return Sample{
		Latencies: l, Wall: time.Second, Busy: time.Second, Sessions: 4,
		Harnesses: []Process{{Name: "harness0", CPU: ptr(0.5), RSS: ptr(100), Goroutines: ptr(7), SchedP99: ptr(20)}},
		Sandboxes: []Process{{Name: "box0", CPU: ptr(1), RSS: ptr(200), Started: ptr(3)}, {Name: "box1", CPU: ptr(0.5), RSS: ptr(300), Started: ptr(4)}},
		Hub:       &Hub{Process: Process{Name: "hub", CPU: ptr(0.25)}, MsgsPerS: ptr(1000)},
		Leases:    &Leases{Acquired: 3, Waited: 1, Refused: 1, WaitUS: []float64{1, 2, 500}},
	}
}

func TestQuantilesAreOfSuccesses(t *testing.T) {
	r := &Rung{Arm: "a", Concurrency: 4}
	r.Summarize([]Sample{sampleOf(t, 1000, 250)}, Machine{CPUs: 4})
	require.EqualValues(t, 1250, r.Attempts)
	require.EqualValues(t, 1000, r.OK)
	require.InDelta(t, 0.8, *r.SuccessRate, 1e-9)
	require.Equal(t, map[string]int64{"busy": 250}, r.Errors)
	require.InDelta(t, 1000, *r.Throughput, 1e-6, "failures are no throughput")
	read := r.Ops["read"]
	for _, c := range []struct {
		got  *float64
		want float64
	}{{read.P50, 500e3}, {read.P90, 900e3}, {read.P95, 950e3}, {read.P99, 990e3}, {read.P999, 999e3}, {read.Max, 1000e3}} {
		require.InEpsilon(t, c.want, *c.got, 0.002)
	}
	write := r.Ops["write"]
	require.EqualValues(t, 250, write.N)
	require.Zero(t, write.OK)
	require.Nil(t, write.P50, "what never succeeded has no latency")
	require.InEpsilon(t, *read.P50, *r.All.P50, 0.002)
}

func TestUse(t *testing.T) {
	r := &Rung{}
	r.Summarize([]Sample{sampleOf(t, 10, 0)}, Machine{CPUs: 4})
	require.InDelta(t, 0.375, *r.SandboxCPUShare, 1e-9)
	require.InDelta(t, 0.125, *r.HarnessCPUShare, 1e-9)
	require.InDelta(t, 0.0625, *r.HubCPUShare, 1e-9)
	require.InDelta(t, 1.75e6/10, *r.CPUPerOp, 1e-6)
	require.InDelta(t, 0.25, *r.Duty, 1e-9)
	require.InDelta(t, 500, *r.SandboxRSS, 1e-9)
	require.InDelta(t, 7, *r.ProcessesStarted, 1e-9)
	require.InDelta(t, 20, *r.SchedP99, 1e-9)
	require.InDelta(t, 0.5, *r.LeaseWaitShare, 1e-9)
	require.InDelta(t, 500, *r.LeaseWaitP95, 1e-9)
	require.InDelta(t, 0.25, *r.SandboxesUsed[0].Share, 1e-9)
	require.InDelta(t, 1000, *r.Hub.MsgsPerS, 1e-9)
	require.Nil(t, r.RelayCPUShare)
}

func TestMedianOfSamples(t *testing.T) {
	slow, one, two := sampleOf(t, 1000, 0), sampleOf(t, 100, 0), sampleOf(t, 110, 0)
	r := &Rung{}
	r.Summarize([]Sample{one, slow, two}, Machine{CPUs: 1})
	require.Equal(t, 3, r.Samples)
	require.InEpsilon(t, 55e3, *r.All.P50, 0.01, "one noisy sample is not the figure")
	require.InEpsilon(t, 1000e3, *r.All.Max, 0.002, "but its worst operation is")
	require.EqualValues(t, 1210, r.Attempts)
	require.Len(t, r.ThroughputOf, 3)
	require.Len(t, r.All.P95Of, 3)
}

// TestAbsentIsNotZero holds that a column which was not measured is not in the record, and that the names are the ones
// that people rely on.
func TestAbsentIsNotZero(t *testing.T) {
	keys := func(r *Rung) map[string]any {
		b, err := json.Marshal(r)
		require.NoError(t, err)
		var m map[string]any
		require.NoError(t, json.Unmarshal(b, &m))
		return m
	}
	full := &Rung{Arm: "a", Workload: "w", Ceiling: ptr(5)}
	full.Summarize([]Sample{sampleOf(t, 10, 1)}, Machine{CPUs: 4})
	full.Attribute(Limits{}.Defaults())
	m := keys(full)
	for name := range strings.FieldsSeq(`arm workload workers sessions sandboxes concurrency ops throughput_ops success_rate
		lease_wait_share sandbox_cpu_share duty harness_rss_bytes sched_p99_us ceiling_ops bound seed machine`) {
		require.Contains(t, m, name)
	}
	read := m["ops"].(map[string]any)["read"].(map[string]any)
	for _, name := range []string{"n", "ok", "p50_us", "p95_us", "p99_us"} {
		require.Contains(t, read, name)
	}
	s := sampleOf(t, 10, 0)
	s.Leases, s.Hub, s.Sandboxes, s.Harnesses = nil, nil, nil, []Process{{Name: "h"}}
	bare := &Rung{}
	bare.Summarize([]Sample{s}, Machine{CPUs: 4})
	m = keys(bare)
	for name := range strings.FieldsSeq(`lease_wait_share lease_wait_p95_us sandbox_cpu_share hub_cpu_share relay_cpu_share
		harness_rss_bytes sched_p99_us ceiling_ops hub sandbox processes_started cpu_per_op_us timer_late_p99_us`) {
		require.NotContains(t, m, name)
	}
}

func TestRecordsAreReadBack(t *testing.T) {
	r := &Rung{Arm: "a", Workload: "w", Concurrency: 2}
	r.Summarize([]Sample{sampleOf(t, 10, 0)}, Machine{CPUs: 4})
	var b strings.Builder
	for _, v := range []any{
		NewRun("w", Machine{}), r,
		Knee{Record: "knee", Arm: "a"},
		MissingArm{Record: "missing-arm", Arm: "docker"},
		Addressable{Record: "addressable", Sandboxes: 5},
		map[string]string{"record": "of a later version"},
	} {
		line, err := json.Marshal(v)
		require.NoError(t, err)
		b.Write(append(line, '\n'))
	}
	f, err := Read(strings.NewReader(b.String() + "\n"))
	require.NoError(t, err)
	require.Len(t, f.Runs, 1)
	require.Len(t, f.Rungs, 1)
	require.Len(t, f.Knees, 1)
	require.Equal(t, "docker", f.Missing[0].Arm)
	require.Equal(t, 5, f.Addressable[0].Sandboxes)
	require.InEpsilon(t, *r.All.P95, *f.Rungs[0].All.P95, 1e-9)

	for _, c := range []struct{ text, want string }{
		{"{", "line 1"},
		{"{}\n[1]", "line 2"},
		{`{"record":"rung"}`, "a rung without arm"},
	} {
		_, err := Read(strings.NewReader(c.text))
		require.ErrorContains(t, err, c.want)
	}
}

// FuzzRead holds that no file of records breaks the reader or what is done with the records.
func FuzzRead(f *testing.F) {
	f.Add(`{"record":"rung","arm":"a","concurrency":1,"all":{"n":1}}`)
	f.Add(`{"record":"knee","arm":"a"}`)
	f.Add(`{"record":"run"}` + "\n\n{")
	f.Fuzz(func(_ *testing.T, text string) {
		file, err := Read(strings.NewReader(text))
		if err != nil {
			return
		}
		FindKnee(file.Rungs, Limits{}.Defaults())
		Compare(file.Rungs, file.Rungs, false, 2)
		for _, r := range file.Rungs {
			_ = r.Line()
		}
	})
}

func TestMergeRefusesGarbage(t *testing.T) {
	_, err := Merge(map[string]Outcomes{"read": {OK: 1, Hist: []byte("none")}})
	require.ErrorContains(t, err, "histogram of read")
}

func TestThisMachine(t *testing.T) {
	m := ThisMachine("v1")
	require.Positive(t, m.CPUs)
	require.Equal(t, "v1", m.Versions["nats-server"])
	require.NotEmpty(t, m.Versions["go"])
}
