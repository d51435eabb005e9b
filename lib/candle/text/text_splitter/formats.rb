# frozen_string_literal: true

module Candle
  class TextSplitter
    # Where texts can be cut. Each cut gives parts that add up to the text.
    #
    # @api private
    module Formats
      # From the best places to the last resort.
      LEVELS = {
        text: %i[paragraphs sentences words characters],
        sentences: %i[sentences words characters],
        markdown: %i[sections blocks lines sentences words characters],
        code: %i[definitions paragraphs lines words characters]
      }.freeze

      FENCE = /\A {0,3}(?:```|~~~)/
      HEADING = /\A {0,3}\#{1,6}(?:[ \t]|$)/
      # Lines that open something at the outermost level, in the languages that most code is written in.
      DEFINITION = /\A(?:(?:pub|public|private|protected|static|final|abstract|export|default|async|unsafe)\s+)*
                    (?:def|class|module|function|func|fn|impl|struct|enum|trait|interface|type|package|namespace|
                       const|let|var|template|object|data|record|@\w+|\#\[)\b?/x
      private_constant :FENCE, :HEADING, :DEFINITION

      module_function

      # @param text [String] in Markdown
      # @return [Array<String>] from heading to heading
      def sections(text)
        grouped(text) { |line, _, fenced| !fenced && line.match?(HEADING) }
      end

      # @param text [String] in Markdown
      # @return [Array<String>] paragraphs, lists and whole blocks of code
      def blocks(text)
        grouped(text) do |line, before, fenced|
          opens = line.match?(FENCE) && !fenced
          opens || (!fenced && before&.strip == "" && line.strip != "")
        end
      end

      # @param text [String] code
      # @return [Array<String>] definitions of the outermost level
      def definitions(text)
        grouped(text) { |line, _, _| line.match?(DEFINITION) }
      end

      # @param text [String]
      # @return [Array<String>] parts that empty lines separate
      def paragraphs(text)
        text.scan(/.+?(?:\n[ \t]*\n\s*|\z)/m)
      end

      # @param text [String]
      # @return [Array<String>]
      def lines(text)
        text.lines
      end

      # @param text [String]
      # @return [Array<String>]
      def sentences(text)
        text.scan(/.+?(?:[.!?…]+["'”’»)\]]*\s+|[。！？]+[」』）]*|\n+|\z)/m)
      end

      # @param text [String]
      # @return [Array<String>] each with the white space after it
      def words(text)
        text.scan(/\S+\s*|\s+/)
      end

      # @param text [String]
      # @return [Array<String>] what readers take for one character each
      def characters(text)
        text.grapheme_clusters
      end

      # Lines in groups, each beginning where the block says so.
      def grouped(text)
        fenced = false
        before = nil
        text.each_line.with_object([]) do |line, groups|
          begins = groups.empty? || yield(line, before, fenced)
          begins ? groups << line.dup : groups.last << line
          fenced = !fenced if line.match?(FENCE)
          before = line
        end
      end
      private_class_method :grouped
    end
  end
end
