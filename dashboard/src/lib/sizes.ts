/** Sizes of rows that were not drawn yet: as the drawn ones are on average, so that going far down a long list comes out where it should. */
import { measureElement, type Virtualizer } from "@tanstack/react-virtual";
import { useMemo } from "react";

export interface Sizes {
  readonly estimateSize: () => number;
  readonly measureElement: (element: HTMLDivElement, entry: ResizeObserverEntry | undefined, instance: Virtualizer<HTMLDivElement, HTMLDivElement>) => number;
}

export function useAverageSize(first: number): Sizes {
  return useMemo(() => {
    let [sum, count] = [0, 0];
    return {
      estimateSize: () => (count === 0 ? first : Math.round(sum / count)),
      measureElement: (element, entry, instance) => {
        const size = measureElement(element, entry, instance);
        sum += size;
        count++;
        return size;
      },
    };
  }, [first]);
}
