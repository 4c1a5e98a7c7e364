/* What a compiled library carries so that it can be profiled wherever it runs.
 *
 * TVM's virtual machine takes an instrument: a function it calls before and after each call. One
 * written in Python works in this process only, since no callback crosses TVM's RPC; one that lives
 * in the library does. It costs nothing unless it is set.
 *
 * Sharp edges: one profile per loaded library, so virtual machines of one library must not be
 * profiled at the same time. Only innermost calls are counted: the time of a loop's body belongs to
 * the operators in it.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <tvm/ffi/c_api.h>

enum { MAX_OPERATORS = 1024, MAX_NAME = 512 };

typedef struct {
  char name[MAX_NAME];
  int64_t calls;
  int64_t nanoseconds;
} Operator;

static Operator operators[MAX_OPERATORS];
static int64_t operator_count = 0;
static int running = 0; /* whether the last event was the start of a call */
static int64_t started = 0;

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static TVMFFIByteArray text_of(const TVMFFIAny* value) {
  TVMFFIByteArray text = {"?", 1};
  if (value->type_index == kTVMFFIRawStr) {
    text.data = value->v_c_str;
    text.size = strlen(value->v_c_str);
  } else if (value->type_index == kTVMFFISmallStr) {
    text.data = value->v_bytes;
    text.size = value->small_str_len;
  } else if (value->type_index == kTVMFFIStr) {
    text = *(const TVMFFIByteArray*)((const char*)value->v_obj + sizeof(TVMFFIObject));
  }
  if (text.size >= MAX_NAME) text.size = MAX_NAME - 1;
  return text;
}

static void record(const TVMFFIAny* name, int64_t nanoseconds) {
  TVMFFIByteArray text = text_of(name);
  int64_t index = 0;
  while (index < operator_count && (strncmp(operators[index].name, text.data, text.size) != 0 ||
                                    operators[index].name[text.size] != '\0')) {
    ++index;
  }
  if (index == operator_count && index >= MAX_OPERATORS - 1) {
    index = MAX_OPERATORS - 1; /* no room: whatever comes now shares the last entry */
    text.data = "(others)";
    text.size = strlen(text.data);
  }
  if (index == operator_count) {
    memcpy(operators[index].name, text.data, text.size);
    ++operator_count;
  }
  operators[index].calls += 1;
  operators[index].nanoseconds += nanoseconds;
}

static int instrument(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  int64_t time = now(); /* first, so that this function's own time is nobody's */
  (void)self;
  (void)count;
  result->type_index = kTVMFFIInt;
  result->v_int64 = 0; /* carry on */
  if (args[2].v_int64) {
    running = 1;
    started = now();
  } else if (running) {
    running = 0;
    record(&args[1], time - started);
  }
  return 0;
}

/* The factory that set_instrument asks for: a fresh instrument, with nothing recorded yet. */
static int make_instrument(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  TVMFFIObjectHandle function = NULL;
  int failed = TVMFFIFunctionCreate(NULL, instrument, NULL, &function);
  (void)self, (void)args, (void)count;
  if (failed) return failed;
  memset(operators, 0, (size_t)operator_count * sizeof(Operator));
  operator_count = 0;
  running = 0;
  result->type_index = kTVMFFIFunction;
  result->v_obj = (TVMFFIObject*)function;
  return 0;
}

/* profile_register() -> the global name of the factory, for set_instrument.
 *
 * A name, because TVM's RPC passes strings but no functions. */
TVM_FFI_DLL_EXPORT int __tvm_ffi_profile_register(void* self, const TVMFFIAny* args, int32_t count,
                                                  TVMFFIAny* result) {
  const char* global = "jaxeff.profile_instrument";
  TVMFFIByteArray name = {global, strlen(global)};
  TVMFFIObjectHandle function = NULL;
  int failed = TVMFFIFunctionCreate(NULL, make_instrument, NULL, &function);
  (void)self, (void)args, (void)count;
  if (failed) return failed;
  failed = TVMFFIFunctionSetGlobal(&name, function, 1);
  TVMFFIObjectDecRef(function);
  return failed ? failed : TVMFFIStringFromByteArray(&name, result);
}

/* profile_entry(index) -> "calls nanoseconds name", or "" behind the last one. */
TVM_FFI_DLL_EXPORT int __tvm_ffi_profile_entry(void* self, const TVMFFIAny* args, int32_t count,
                                               TVMFFIAny* result) {
  char line[MAX_NAME + 48] = "";
  int64_t index = args[0].v_int64;
  TVMFFIByteArray text = {line, 0};
  (void)self;
  (void)count;
  if (index >= 0 && index < operator_count) {
    const Operator* entry = &operators[index];
    snprintf(line, sizeof(line), "%lld %lld %s", (long long)entry->calls,
             (long long)entry->nanoseconds, entry->name);
  }
  text.size = strlen(line);
  return TVMFFIStringFromByteArray(&text, result);
}
