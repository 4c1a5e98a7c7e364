"""Start of a program without an operating system: vectors, memories, a first function.

For the example on an emulated board; a product has its own. Output goes through semihosting: the
debugger, or the emulator, prints it.
"""

from __future__ import annotations

import dataclasses

from jaxeff_export.targets import BoardMemory

STARTUP = r"""/* Starts the example on a Cortex-M: memories, the floating-point unit, main. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern uint32_t stack_top[], data_start[], data_end[], data_image[], bss_start[], bss_end[];
extern void initialise_monitor_handles(void);
extern int main(void);
void _init(void);
void _fini(void);
void reset(void);
void fault(void);

void _init(void) {}
void _fini(void) {}

void fault(void)
{
    _Exit(70);
}

void reset(void)
{
    *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; /* CPACR: the floating-point unit */
    __asm volatile("dsb\n\tisb");
    memcpy(data_start, data_image, (size_t)((char *)data_end - (char *)data_start));
    memset(bss_start, 0, (size_t)((char *)bss_end - (char *)bss_start));
    initialise_monitor_handles();
    exit(main());
}

__attribute__((section(".vectors"), used)) static void *const vectors[16] = {
    stack_top, (void *)reset, (void *)fault, (void *)fault,
    (void *)fault, (void *)fault, (void *)fault};
"""

_LINKER_SCRIPT = """/* Memories of {machine} as qemu emulates it; write those of your board. */
MEMORY
{{
    FLASH (rx) : ORIGIN = {flash:#x}, LENGTH = {flash_size}
    RAM (rwx) : ORIGIN = {ram:#x}, LENGTH = {ram_size}
}}

ENTRY(reset)

SECTIONS
{{
    .text : {{ KEEP(*(.vectors)) *(.text*) *(.rodata*) *(.got*) . = ALIGN(8); }} > FLASH
    .ARM.exidx : {{ *(.ARM.exidx*) }} > FLASH
    .data : {{ data_start = .; *(.data*) . = ALIGN(8); data_end = .; }} > RAM AT > FLASH
    data_image = LOADADDR(.data);
    .bss : {{ bss_start = .; *(.bss*) *(COMMON) . = ALIGN(8); bss_end = .; }} > RAM
    end = .; /* the heap, which only printf and the files of the example use */
    stack_top = ORIGIN(RAM) + LENGTH(RAM);
}}
"""


def at_least(board: BoardMemory, flash: int | None, ram: int | None) -> BoardMemory:
    """Enlarges a board to the memories that are given, where these are larger than its own."""
    (code, has), (data, holds) = board.flash, board.ram
    more = (code, max(has, flash or 0)), (data, max(holds, ram or 0))
    return dataclasses.replace(board, flash=more[0], ram=more[1])


def linker_script(board: BoardMemory) -> str:
    """Writes the linker script: where the parts of a program lie."""
    return _LINKER_SCRIPT.format(
        machine=board.machine,
        flash=board.flash[0],
        flash_size=board.flash[1],
        ram=board.ram[0],
        ram_size=board.ram[1],
    )
