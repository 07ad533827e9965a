package record

import "slices"

// summarizeUse fills the columns of what the processes used.
func (r *Rung) summarizeUse(samples []Sample, cpus int) {
	r.Duty = medianOf(samples, func(s Sample) *float64 {
		if s.Sessions == 0 || s.Wall <= 0 {
			return nil
		}
		return new(s.Busy.Seconds() / (s.Wall.Seconds() * float64(s.Sessions)))
	})
	share := func(of func(Sample) []Process) *float64 {
		return medianOf(samples, func(s Sample) *float64 {
			cpu := sum(of(s), func(p Process) *float64 { return p.CPU })
			if cpu == nil || s.Wall <= 0 || cpus == 0 {
				return nil
			}
			return new(*cpu / s.Wall.Seconds() / float64(cpus))
		})
	}
	sandboxes := func(s Sample) []Process { return s.Sandboxes }
	harnesses := func(s Sample) []Process { return s.Harnesses }
	relays := func(s Sample) []Process { return s.Relays }
	hub := func(s Sample) []Process {
		if s.Hub == nil {
			return nil
		}
		return []Process{s.Hub.Process}
	}
	r.SandboxCPUShare, r.HarnessCPUShare, r.RelayCPUShare, r.HubCPUShare = share(sandboxes), share(harnesses), share(relays), share(hub)
	r.CPUPerOp = medianOf(samples, func(s Sample) *float64 {
		parts := slices.Concat(sandboxes(s), relays(s), hub(s))
		cpu := sum(parts, func(p Process) *float64 { return p.CPU })
		ok := s.Latencies.all().ok
		if cpu == nil || ok == 0 {
			return nil
		}
		return new(*cpu * 1e6 / float64(ok))
	})
	r.HarnessRSS = medianOf(samples, func(s Sample) *float64 { return sum(s.Harnesses, func(p Process) *float64 { return p.RSS }) })
	r.SandboxRSS = medianOf(samples, func(s Sample) *float64 { return sum(s.Sandboxes, func(p Process) *float64 { return p.RSS }) })
	r.ProcessesStarted = medianOf(samples, func(s Sample) *float64 {
		return sum(s.Sandboxes, func(p Process) *float64 { return p.Started })
	})
	r.SchedP99 = medianOf(samples, func(s Sample) *float64 { return most(s.Harnesses, func(p Process) *float64 { return p.SchedP99 }) })
	r.TimerLateP99 = medianOf(samples, func(s Sample) *float64 { return s.Late })
	r.Harnesses, r.SandboxesUsed, r.Relays = processes(samples, cpus, harnesses), processes(samples, cpus, sandboxes), processes(samples, cpus, relays)
	if p := processes(samples, cpus, hub); len(p) == 1 {
		r.Hub = &Hub{Process: p[0]}
		of := func(column func(*Hub) *float64) *float64 {
			return medianOf(samples, func(s Sample) *float64 { return column(s.Hub) })
		}
		r.Hub.MsgsPerS = of(func(h *Hub) *float64 { return h.MsgsPerS })
		r.Hub.BytesPerS = of(func(h *Hub) *float64 { return h.BytesPerS })
		r.Hub.SlowConsumers = of(func(h *Hub) *float64 { return h.SlowConsumers })
	}
	r.summarizeLeases(samples)
}

func (r *Rung) summarizeLeases(samples []Sample) {
	var all Leases
	measured := false
	for _, s := range samples {
		if s.Leases == nil {
			continue
		}
		measured = true
		all.Acquired += s.Leases.Acquired
		all.Waited += s.Leases.Waited
		all.Refused += s.Leases.Refused
		all.WaitUS = append(all.WaitUS, s.Leases.WaitUS...)
	}
	if n := all.Acquired + all.Refused; measured && n > 0 {
		r.LeaseWaitShare = new(float64(all.Waited+all.Refused) / float64(n))
	}
	if n := len(all.WaitUS); n > 0 {
		slices.Sort(all.WaitUS)
		r.LeaseWaitP95 = new(all.WaitUS[min(n-1, n*95/100)])
	}
}

// sum of what was measured; nil when nothing was.
func sum(ps []Process, column func(Process) *float64) (total *float64) {
	for _, p := range ps {
		if v := column(p); v != nil {
			if total == nil {
				total = new(float64)
			}
			*total += *v
		}
	}
	return total
}

func most(ps []Process, column func(Process) *float64) (top *float64) {
	for _, p := range ps {
		if v := column(p); v != nil && (top == nil || *v > *top) {
			top = v
		}
	}
	return top
}

// processes are the medians of each process over the samples.
func processes(samples []Sample, cpus int, of func(Sample) []Process) (out []Process) {
	if len(samples) == 0 {
		return nil
	}
	for i, first := range of(samples[0]) {
		column := func(c func(Process, Sample) *float64) *float64 {
			return medianOf(samples, func(s Sample) *float64 {
				if ps := of(s); i < len(ps) {
					return c(ps[i], s)
				}
				return nil
			})
		}
		out = append(out, Process{
			Name: first.Name,
			CPU:  column(func(p Process, _ Sample) *float64 { return p.CPU }),
			Share: column(func(p Process, s Sample) *float64 {
				if p.CPU == nil || s.Wall <= 0 || cpus == 0 {
					return nil
				}
				return new(*p.CPU / s.Wall.Seconds() / float64(cpus))
			}),
			RSS:        column(func(p Process, _ Sample) *float64 { return p.RSS }),
			Started:    column(func(p Process, _ Sample) *float64 { return p.Started }),
			Goroutines: column(func(p Process, _ Sample) *float64 { return p.Goroutines }),
			SchedP99:   column(func(p Process, _ Sample) *float64 { return p.SchedP99 }),
		})
	}
	return out
}
