"""What is read out of a compiled program's text, against programs counted by hand."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks import hlo

LOOPS = """HloModule jit_f, entry_computation_layout={(f32[8]{0})->f32[8]{0}}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

%inner (x: (s32[], f32[8])) -> (s32[], f32[8]) {
  %x = (s32[], f32[8]{0}) parameter(0)
  %v = f32[8]{0} get-tuple-element(%x), index=1
  %r = f32[8]{0} all-reduce(%v), replica_groups={}, to_apply=%add
  %f = f32[8]{0} fusion(%r), calls=%add, backend_config={"estimated_cycles":"100"}
  ROOT %t = (s32[], f32[8]{0}) tuple(%x, %f)
}

%outer (x: (s32[], f32[8])) -> (s32[], f32[8]) {
  %x = (s32[], f32[8]{0}) parameter(0)
  ROOT %w = (s32[], f32[8]{0}) while(%x), condition=%more, body=%inner
}

%more (x: (s32[], f32[8])) -> pred[] {
  %x = (s32[], f32[8]{0}) parameter(0)
  ROOT %c = pred[] constant(true)
}

ENTRY %main.1 (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %g = (bf16[2,3]{1,0:T(8,128)(2,1)}, /*index=1*/pred[5]{0}) all-gather-start(%x)
  %d = (bf16[2,3]{1,0:T(8,128)(2,1)}, /*index=1*/pred[5]{0}) all-gather-done(%g)
  %y = bf16[4,4]{0,1} copy(%d)
  %w = (s32[], f32[8]{0}) while(%x), condition=%more, body=%outer, backend_config={"known_trip_count":{"n":"3"},"estimated_cycles":"7"}
  ROOT %f = f32[8]{0} fusion(%w), kind=kLoop, calls=%add, backend_config={"estimated_cycles":"5"}
}
"""  # noqa: E501


def test_loops_multiply_and_those_without_a_length_by_what_is_given():
    # An all-gather of 2 * 6 + 5 bytes; an all-reduce of 32 in 3 * 1 and 3 * 10 trips.
    assert hlo.collectives(LOOPS) == {"all-gather": 17, "all-reduce": 96}
    assert hlo.collectives(LOOPS, 10) == {"all-gather": 17, "all-reduce": 960}
    assert hlo.estimated_cycles(LOOPS) == 5 + 7 + 300
    assert hlo.estimated_cycles(LOOPS, 2.5) == 5 + 7 + 750
    # Or an outermost one as often as is said of these.
    assert hlo.collectives(LOOPS, 10, 4)["all-reduce"] == 3 * 10 * 32
    unknown = LOOPS.replace('"known_trip_count":{"n":"3"},', "")
    assert hlo.estimated_cycles(unknown, 10, 4) == 5 + 7 + 4 * 10 * 100
    assert hlo.largest_copy(LOOPS) == 32
    assert hlo.estimated_cycles("ENTRY %f (x: f32[]) -> f32[] {\n}") is None


def test_a_loop_ends_by_its_condition():
    """As TPU programs say it: the counter is compared with a constant."""
    condition = """
  %n = s32[]{:T(128)} constant(50), metadata={op_name="jit(f)"}
  %i = s32[]{:T(128)} get-tuple-element(%x), index=0
  ROOT %c = pred[]{:T(512)} compare(%i, %n), direction=LT, metadata={op_name="lt"}"""
    known = LOOPS.replace("\n  ROOT %c = pred[] constant(true)", condition)
    assert known != LOOPS
    # The outer loop has its own count of 3, the inner one 50.
    assert hlo.collectives(known, 10)["all-reduce"] == 3 * 50 * 32


KERNELS = """HloModule jit_f, is_scheduled=true

%row (p: f32[100,8], i: s32[]) -> f32[8] {
  %p = f32[100,8]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %z = s32[] constant(0)
  %s = f32[1,8]{1,0} dynamic-slice(%p, %i, %z), dynamic_slice_sizes={1,8}
  ROOT %b = f32[8]{0} bitcast(%s)
}

%put (q: f32[50,8], v: f32[8], j: s32[]) -> (f32[50,8], f32[8]) {
  %q = f32[50,8]{1,0} parameter(0)
  %v = f32[8]{0} parameter(1)
  %j = s32[] parameter(2)
  %o = s32[] constant(0)
  %e = f32[1,8]{1,0} bitcast(%v)
  %u = f32[50,8]{1,0} dynamic-update-slice(%q, %e, %j, %o)
  %n = f32[8]{0} negate(%v)
  ROOT %t = (f32[50,8]{1,0}, f32[8]{0}) tuple(%u, %n)
}

%step (x: (f32[50,8], f32[100,8], s32[])) -> (f32[50,8], f32[100,8], s32[]) {
  %x = (f32[50,8]{1,0}, f32[100,8]{1,0}, s32[]) parameter(0)
  %x0 = f32[50,8]{1,0} get-tuple-element(%x), index=0
  %x1 = f32[100,8]{1,0} get-tuple-element(%x), index=1
  %x2 = s32[] get-tuple-element(%x), index=2
  %r = f32[8]{0} fusion(%x1, %x2), kind=kLoop, calls=%row, metadata={op_name="a(b), c"}
  %w = (f32[50,8]{1,0}, f32[8]{0}) fusion(%x0, %r, %x2), kind=kLoop, calls=%put
  %w0 = f32[50,8]{1,0} get-tuple-element(%w), index=0
  ROOT %y = (f32[50,8]{1,0}, f32[100,8]{1,0}, s32[]) tuple(%w0, %x1, %x2)
}

%less (a: s32[], b: s32[]) -> pred[] {
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  ROOT %l = pred[] compare(%a, %b), direction=LT
}

%more (c: (f32[50,8], f32[100,8], s32[])) -> pred[] {
  %c = (f32[50,8]{1,0}, f32[100,8]{1,0}, s32[]) parameter(0)
  %c2 = s32[] get-tuple-element(%c), index=2
  ROOT %m = pred[] fusion(%c2, %c2), kind=kLoop, calls=%less
}

ENTRY %main (k: f32[50,8], d: f32[100,8], f: s32[]) -> f32[50,8] {
  %k = f32[50,8]{1,0} parameter(0)
  %d = f32[100,8]{1,0} parameter(1)
  %f = s32[] parameter(2)
  %k1 = f32[50,8]{1,0} copy(%k)
  %in = (f32[50,8]{1,0}, f32[100,8]{1,0}, s32[]) tuple(%k1, %d, %f)
  %out = (f32[50,8]{1,0}, f32[100,8]{1,0}, s32[]) while(%in), condition=%more, body=%step
  ROOT %g = f32[50,8]{1,0} get-tuple-element(%out), index=0
}
"""  # noqa: E501


def test_kernels_waits_and_bytes_by_hand():
    """A row of a table is read and written to another one in every trip of a loop."""
    copy = 2 * 4 * 50 * 8
    row = 32 + 4 + 32  # a slice, its index, the result
    # A row and its index; the row in its place, and its negative.
    put = 32 + 4 + 32 + 32
    condition = 4 + 4 + 1
    for trips in (1, 5):
        found = hlo.work(KERNELS, trips)
        assert found.kernels == 1 + trips * 3  # the body has two, the condition one
        assert found.waits == trips + 1  # the last one ends the loop
        assert found.bytes == copy + trips * (row + put + condition)
    known = ' backend_config={"known_trip_count":{"n":"5"}}\n  ROOT %g'
    text = KERNELS.replace("body=%step\n  ROOT %g", "body=%step," + known)
    assert text != KERNELS and hlo.work(text) == found._replace(waits=0)


def test_a_program_of_two_devices():
    """Three sums of [5, 3] floats over devices, in a loop that XLA keeps."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("clients",))

    def sums(x):
        step = lambda _, v: jax.lax.psum(jnp.sin(v), "clients") / 2  # noqa: E731
        return jax.lax.fori_loop(0, 3, step, x)

    specs = {"in_specs": P("clients"), "out_specs": P("clients"), "check_vma": False}
    f = jax.shard_map(sums, mesh=mesh, **specs)
    sharding = NamedSharding(mesh, P("clients"))
    x = jax.ShapeDtypeStruct((10, 3), jnp.float32, sharding=sharding)
    text = jax.jit(f).lower(x).compile().as_text()
    assert hlo.collectives(text) == {"all-reduce": 3 * 5 * 3 * 4}
    assert hlo.estimated_cycles(text) is None
