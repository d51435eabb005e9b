# frozen_string_literal: true

module Candle
  class CLI
    # Which files are images, by their names.
    #
    # @api private
    module ImagePaths
      ENDINGS = /\.(?:png|jpe?g|webp|gif|bmp)\z/i
      # A path in a text: in quotes, with escaped spaces, or without spaces.
      MENTIONED = /"[^"]+"|'[^']+'|(?:\\.|[^\s\\])+/
      private_constant :ENDINGS, :MENTIONED

      module_function

      # @param path [String]
      # @return [Boolean]
      def image?(path)
        path.match?(ENDINGS)
      end

      # @param text [String] what someone typed
      # @return [Array(String, Array<String>)] the text without the paths of images that there are, and those paths
      def split(text)
        images = []
        rest = text.gsub(MENTIONED) do |word|
          path = path_of(word)
          image?(path) && File.file?(path) ? (images << path) && "" : word
        end
        images.empty? ? [text, []] : [rest.squeeze(" ").strip, images]
      end

      def path_of(word)
        path = word.match?(/\A["']/) ? word[1...-1] : word.gsub(/\\(.)/) { Regexp.last_match(1) }.sub(/[,;:!?.]+\z/, "")
        path.start_with?("~/") ? File.join(Dir.home, path[2..]) : path
      end
      private_class_method :path_of
    end
  end
end
