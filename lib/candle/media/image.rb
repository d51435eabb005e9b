# frozen_string_literal: true

require "pathname"

Candle::Native.complete(:Image)

module Candle
  # A decoded picture: PNG, JPEG, WebP, GIF (its first frame) or BMP, turned upright as its EXIF data say, with what is
  # transparent laid over white. Methods that take images decode them themselves; one that goes to several of them is
  # decoded once this way. The pixels stay outside of Ruby's memory.
  #
  # Nothing is decoded beyond {max_pixels} and {max_bytes}, so that a small file that unfolds into gigabytes is an
  # error. Nothing is fetched either: an address is refused.
  #
  # @example
  #   image = Candle::Image.open("spec/fixtures/images/photo.png")
  #   image.size # => [88, 66]
  #   Candle::Image.open(File.binread("spec/fixtures/images/turned-6.jpg")).size # => [22, 29]
  class Image
    include Uncopyable

    extend EncodedInput

    # The smallest picture there is: a white dot.
    #
    # @api private
    BLANK = ["424d3a0000000000000036000000280000000100000001000000010018000000000004000000000000000000000000000000" \
             "00000000ffffff00"].pack("H*").freeze

    class << self
      # @param source [String, Pathname, IO, Image] a path, the bytes of a file, or what they can be read from
      # @return [Image]
      # @raise [InvalidInputError] for what can't be read, and beyond the limits
      def open(source)
        Image === source ? source : _decode(input(source))
      end

      # @return [Integer] the most pixels that an image may have; 100 million unless set
      def max_pixels
        _limits.last
      end

      # @param count [Integer]
      # @raise [ArgumentError] for anything but a positive Integer
      def max_pixels=(count)
        send(:_limits=, max_bytes, limit(count, "max_pixels"))
      end

      # @return [Integer] the most bytes that an encoded image may have; 256 MiB unless set
      def max_bytes
        _limits.first
      end

      # @param count [Integer]
      # @raise [ArgumentError] for anything but a positive Integer
      def max_bytes=(count)
        send(:_limits=, limit(count, "max_bytes"), max_pixels)
      end

      # One image or several, as the native code takes them.
      #
      # @api private
      # @return [Array(Array, Boolean)] the images, and whether a single one was given
      def inputs(images)
        return [[input(images)], true] unless Array === images

        [images.each_with_index.map { |image, index| input(image, "images[#{index}]") }, false]
      end

      # Whether a value is an image by itself, where a String may also be a text.
      #
      # @api private
      def like?(value)
        return false unless Object === value
        return _encoded(TextInput.string_of(value, "image")) if value.respond_to?(:to_str)

        value.is_a?(Image) || value.respond_to?(:to_path) || value.respond_to?(:read)
      end

      private

      def input(image, name = "image")
        raise InvalidInputError, "#{name} must be an image, not #{Arguments.shown(image)}" unless Object === image
        return image if image.is_a?(Image)
        return [:bytes, read(image, name)] if image.respond_to?(:read) && !image.is_a?(Pathname)

        image = image.to_path if image.respond_to?(:to_path)
        unless image.respond_to?(:to_str)
          raise InvalidInputError, "#{name} must be a path, the bytes of a file, an IO or a Candle::Image, " \
                                   "not a #{image.class}"
        end

        bytes_or_file(TextInput.string_of(image, name), name)
      end
    end

    # @!method width
    #   @return [Integer] in pixels

    # @!method height
    #   @return [Integer] in pixels

    # @return [Array(Integer, Integer)] width and height
    def size
      [width, height]
    end

    # What an image processor makes of the picture, which is what a model is shown of it: the picture as one view, and
    # its tiles where the processor cuts it.
    #
    # @example
    #   image = Candle::Image.open("spec/fixtures/images/photo.png")
    #   image.prepared("image_processor_type" => "ViTImageProcessor", "size" => 224).map(&:shape) # => [[3, 224, 224]]
    #
    # @param settings [Hash] as a checkpoint's `preprocessor_config.json` has them
    # @return [Array<Tensor>] `[3, height, width]` each
    # @raise [ArgumentError] for anything but a Hash of what JSON has
    # @raise [UnsupportedModelError, CorruptModelError] for settings that no processor has
    # @raise [InvalidInputError] for a picture that can't be brought to the size
    def prepared(settings)
      unless Arguments.answers?(settings, :to_hash)
        raise ArgumentError, "settings must be a Hash, not #{Arguments.shown(settings)}"
      end

      _prepared(Arguments.json(settings.to_hash, "settings", error: ArgumentError))
    end

    # Draws the boxes that {ObjectDetector#detect} finds, in a colour for each label.
    #
    # @example
    #   image = Candle::Image.open("spec/fixtures/images/photo.png")
    #   image.draw_boxes([{ label: "tower", box: { xmin: 10, ymin: 5, xmax: 40, ymax: 60 } }]).size # => [88, 66]
    #
    # @param boxes [Array<Hash>] things as `{label:, box: {xmin:, ymin:, xmax:, ymax:}}`, or such boxes, in pixels
    # @param color [Array(Integer, Integer, Integer), nil] red, green and blue of all boxes; nil is a colour per label
    # @param width [Integer, nil] of lines, in pixels; nil is what suits the image
    # @return [Image] a copy; this one stays as it is
    # @raise [ArgumentError] for anything else
    def draw_boxes(boxes, color: nil, width: nil)
      boxes = Arguments.list(boxes)
      raise ArgumentError, "boxes must be an Array of Hashes, not #{Arguments.shown(boxes)}" unless Array === boxes

      color = checked_color(color)
      width = Arguments.count(width, "width") || [size.max / 200, 1].max
      _outlined(boxes.map { |given| outline(given, color) }, [width, size.max].min)
    end

    # Writes the image as a PNG file.
    #
    # @param path [String, Pathname] ending in `.png`
    # @return [Image] itself
    # @raise [ArgumentError] for another ending
    # @raise [SystemCallError] when the file can't be written
    def save(path)
      path = TextInput.path(path, "path")
      raise ArgumentError, "path must end in .png, not #{path.inspect}" unless path.match?(/\.png\z/i)

      File.binwrite(path, _png)
      self
    end

    # @return [String] one line
    def inspect
      "#<#{self.class} #{width}x#{height}>"
    end

    alias to_s inspect

    private

    EDGES = %i[xmin ymin xmax ymax].freeze
    # Colours that are easily told apart.
    COLORS = [[230, 25, 75], [60, 180, 75], [0, 130, 200], [245, 130, 48], [145, 30, 180], [0, 128, 128],
              [240, 50, 230], [128, 128, 0], [170, 110, 40], [0, 0, 128]].freeze
    private_constant :EDGES, :COLORS

    def outline(given, color)
      raise ArgumentError, "a box must be a Hash, not #{Arguments.shown(given)}" unless Hash === given

      box = given[:box] || given["box"] || given
      raise ArgumentError, "box must be a Hash, not #{Arguments.shown(box)}" unless Hash === box

      corners = EDGES.map { |edge| Arguments.float(box.fetch(edge) { box[edge.to_s] }, edge.to_s) }
      label = given[:label] || given["label"]
      [corners, color || COLORS[(String === label ? label : "").sum % COLORS.size]]
    end

    def checked_color(color)
      return if NilClass === color

      bytes = Array === color && color.all? { |part| Integer === part && part.between?(0, 255) }
      return color if bytes && color.size == 3

      raise ArgumentError, "color must be three Integers from 0 to 255, not #{Arguments.shown(color)}"
    end
  end
end
