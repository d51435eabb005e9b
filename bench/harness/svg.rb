# frozen_string_literal: true

require "cgi"

module Bench
  # Pieces of SVG that all pictures are made of.
  module Svg
    # Readable on white and on dark pages; the background is the page's.
    STYLE = <<~CSS
      text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
      .title { font-size: 16px; font-weight: 600; }
      .heading { font-weight: 600; }
      .note { font-size: 11px; fill: #59636e; }
      .grid { stroke: #d1d9e0; stroke-width: 1; }
      @media (prefers-color-scheme: dark) {
        text { fill: #e6edf3; }
        .note { fill: #9198a1; }
        .grid { stroke: #3d444d; }
      }
    CSS

    module_function

    # @param size [Array(Integer, Integer)] width and height
    # @param style [String] CSS besides {STYLE}
    # @param parts [Array<String>] in the order in which they are drawn
    # @return [String] a picture
    def picture(size, title, style, parts)
      width, height = size
      <<~SVG
        <svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 #{width} #{height}" width="#{width}" height="#{height}" role="img" aria-labelledby="title">
        <title id="title">#{escape(title)}</title>
        <style>
        #{STYLE}#{style}</style>
        #{parts.flatten.join("\n")}
        </svg>
      SVG
    end

    def text(left, top, content, kind = nil, anchor: nil)
      attributes = [(%(class="#{kind}") if kind), (%(text-anchor="#{anchor}") if anchor)].compact
      "<text x=\"#{left}\" y=\"#{top}\" #{attributes.join(" ")}>#{escape(content)}</text>"
    end

    def rectangle(left, top, width, height, kind)
      %(<rect class="#{kind}" x="#{left}" y="#{top}" width="#{width}" height="#{height}" rx="2"/>)
    end

    # @param from [Array(Numeric, Numeric)] left and top
    # @param to [Array(Numeric, Numeric)]
    def line(from, to, kind)
      %(<line class="#{kind}" x1="#{from[0]}" x2="#{to[0]}" y1="#{from[1]}" y2="#{to[1]}"/>)
    end

    def circle(center, radius, kind)
      %(<circle class="#{kind}" cx="#{center[0]}" cy="#{center[1]}" r="#{radius}"/>)
    end

    def escape(content)
      CGI.escapeHTML(content)
    end
  end
end
