"""Face data: sources, samplers, transforms, a loader and a synthetic identity set."""
